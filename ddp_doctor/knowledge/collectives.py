"""The collectives, one row each: who gives what to whom, what nccl-tests calls their size, and their bus factor.

A rank gives one share, or one for each rank; a share of those that reduce is added up over all who gave. From this
follow payload, expectation and the size. What is printed for sizes is nccl-tests' (src/*.cu, GetCollByteCount and
GetBw, and doc/PERFORMANCE.md): of those with a share for each rank all shares count, each a multiple of 16 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

#: nccl-tests rounds a share down to it, where the size is of several.
SHARE_BYTES = 16


@dataclass(frozen=True)
class Collective:
    """One row. ``rank``, ``root`` and sources are ranks of the group, of which there are ``ranks``."""

    name: str
    words: str
    for_each: bool = False  # who gives, gives one share for each rank
    from_root: bool = False  # only the root gives
    to_root: bool = False  # only the root takes
    ring: bool = False  # who takes, takes from the rank before, or where the "root" is 1 from the next one
    reduces: bool = False
    in_place: bool = False  # torch has it only so: what is given is overwritten
    is_timed: bool = True  # over sizes
    is_uneven: bool = False  # shares differ in length

    @property
    def has_root(self) -> bool:
        """Whether one rank is not like the others."""
        return self.from_root or self.to_root

    @property
    def of_shares(self) -> bool:
        """Whether its size is that of a share for each rank."""
        return self.for_each or not (self.reduces or self.from_root or self.ring)

    def gives(self, rank: int, ranks: int, root: int) -> int:
        """How many shares a rank gives."""
        if self.from_root and rank != root:
            return 0
        return ranks if self.for_each else 1

    def takes(self, rank: int, ranks: int, root: int) -> list[tuple[int | None, int]]:
        """The shares of its result in order: who gave it (None: all, added up), and which of theirs it is."""
        if self.to_root and rank != root:
            return []
        sources: Sequence[int | None] = range(ranks)
        if self.reduces or self.from_root or self.ring:
            behind = (rank + 1 if root else rank - 1) % ranks
            sources = [None if self.reduces else root if self.from_root else behind]
        return [(source, rank if self.for_each else 0) for source in sources]

    def bus_factor(self, ranks: int) -> float:
        """``busbw`` by ``algbw``: each byte that a link carries counts once."""
        if self.name == ALL_REDUCE:
            return 2 * (ranks - 1) / ranks  # it is reduced, then handed back
        return (ranks - 1) / ranks if self.of_shares else 1.0

    def share_bytes(self, size: int, ranks: int) -> int:
        """Bytes of a share where the size is meant to be ``size``: 0 where it is too small for so many ranks."""
        return size // ranks // SHARE_BYTES * SHARE_BYTES if self.of_shares else size

    def moved(self, size: int, ranks: int) -> int:
        """Bytes that are moved, and printed as the size, where it is meant to be ``size``."""
        return self.share_bytes(size, ranks) * (ranks if self.of_shares else 1)


ALL_REDUCE = "all_reduce"
#: Roots that are tried; more cost time and are alike.
MOST_ROOTS = 8
#: Not timed over sizes, and told apart by name.
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
    """``--sizes``: from the first to the second by the factor, as nccl-tests' -b, -e and -f."""
    first, last, factor = sizes
    found = [first]
    while factor > 1 and found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return found
