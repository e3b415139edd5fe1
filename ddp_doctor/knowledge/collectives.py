"""The collectives, one row each: which rank gives what to which, nccl-tests' size, and the bus factor.

A rank gives one share, or one for each rank. A reduction adds up the shares of all giving ranks. Payload, expectation
and size follow from this. Sizes are printed as nccl-tests prints them (src/*.cu, GetCollByteCount and GetBw, and
doc/PERFORMANCE.md): if there is a share for each rank, all shares count, each a multiple of 16 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

#: nccl-tests rounds a share down to a multiple of this if the size counts several shares.
SHARE_BYTES = 16


@dataclass(frozen=True)
class Collective:
    """A row of the table. ``rank``, ``root`` and sources are ranks in the group of ``ranks``."""

    name: str
    words: str
    for_each: bool = False  # a giving rank gives one share for each rank
    from_root: bool = False  # only the root gives
    to_root: bool = False  # only the root takes
    ring: bool = False  # a rank takes from the rank before it, or if the "root" is 1 from the next rank
    reduces: bool = False
    in_place: bool = False  # torch offers only this form, which overwrites the input
    is_timed: bool = True  # over sizes
    is_uneven: bool = False  # shares differ in length

    @property
    def has_root(self) -> bool:
        """Return True if one rank has a special role."""
        return self.from_root or self.to_root

    @property
    def of_shares(self) -> bool:
        """Return True if its size counts one share for each rank."""
        return self.for_each or not (self.reduces or self.from_root or self.ring)

    def gives(self, rank: int, ranks: int, root: int) -> int:
        """Return the number of shares that a rank gives."""
        if self.from_root and rank != root:
            return 0
        return ranks if self.for_each else 1

    def takes(self, rank: int, ranks: int, root: int) -> list[tuple[int | None, int]]:
        """Return a rank's result: for each share the giving rank (None: the sum of all), and which of its shares."""
        if self.to_root and rank != root:
            return []
        sources: Sequence[int | None] = range(ranks)
        if self.reduces or self.from_root or self.ring:
            behind = (rank + 1 if root else rank - 1) % ranks
            sources = [None if self.reduces else root if self.from_root else behind]
        return [(source, rank if self.for_each else 0) for source in sources]

    def bus_factor(self, ranks: int) -> float:
        """Return ``busbw`` divided by ``algbw``, so that each byte on a link counts once."""
        if self.name == ALL_REDUCE:
            return 2 * (ranks - 1) / ranks  # reduced, then distributed
        return (ranks - 1) / ranks if self.of_shares else 1.0

    def share_bytes(self, size: int, ranks: int) -> int:
        """Return the bytes of a share for a total of about ``size``; 0 if that is too small for this many ranks."""
        return size // ranks // SHARE_BYTES * SHARE_BYTES if self.of_shares else size

    def moved(self, size: int, ranks: int) -> int:
        """Return the bytes that are moved, and printed as the size, for a requested ``size``."""
        return self.share_bytes(size, ranks) * (ranks if self.of_shares else 1)


ALL_REDUCE = "all_reduce"
#: Maximum number of roots to test; more roots cost time and behave the same.
MOST_ROOTS = 8
#: Collectives with special tests, which are not timed over sizes.
BARRIER, OBJECTS, GROUPS = "barrier", "objects", "groups"

TABLE = {
    row.name: row
    for row in (
        Collective(ALL_REDUCE, "all-reduce", reduces=True, in_place=True),
        Collective("broadcast", "broadcast", from_root=True, in_place=True),
        Collective("all_gather", "all-gather"),
        Collective("reduce_scatter", "reduce-scatter", for_each=True, reduces=True),
        Collective("all_to_all", "all-to-all", for_each=True),
        Collective("all_to_all_uneven", "uneven all-to-all", for_each=True, is_timed=False, is_uneven=True),
        Collective("reduce", "reduce", to_root=True, reduces=True, in_place=True),
        Collective("gather", "gather", to_root=True),
        Collective("scatter", "scatter", from_root=True, for_each=True),
        Collective("send_recv", "ring of sends and receives", ring=True),
        Collective(BARRIER, "barrier", is_timed=False),
        Collective(OBJECTS, "object collectives", is_timed=False),
        Collective(GROUPS, "all-reduce in groups of a part of the ranks", is_timed=False),
    )
}


def measured_sizes(sizes: tuple[int, int, int]) -> list[int]:
    """Return the sizes of ``--sizes``: from the first to the second by the factor, like nccl-tests' -b, -e and -f."""
    first, last, factor = sizes
    found = [first]
    while factor > 1 and found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return found
