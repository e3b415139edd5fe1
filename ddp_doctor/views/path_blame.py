"""Find the cause of bad paths among good ones: an end that nearly all of them share, or the paths themselves."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ddp_doctor.knowledge.network.path_quality import BLAMED_SHARE

#: From one node or rank to another: the end that dials or sends, and the end that is dialed or receives.
Path = tuple[int, int]
#: A node and one of its sides; the side is the node's index in its paths.
End = tuple[int, int]
OUTBOUND, INBOUND = 0, 1


@dataclass(frozen=True)
class Blame:
    """The fewest causes that explain all bad paths. A node may be bad on both sides."""

    everyone: bool = False
    inbound: tuple[int, ...] = ()
    outbound: tuple[int, ...] = ()
    paths: tuple[Path, ...] = ()  # paths that no bad node explains

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that are bad on either side."""
        return tuple(sorted({*self.inbound, *self.outbound}))


def blame(
    bad: Collection[Path], good: Collection[Path], *, one_of_two: bool = False, share: float = BLAMED_SHARE
) -> Blame:
    """Explain the bad paths; untested paths are in neither collection.

    A node is blamed for two or more bad paths on one side if they are nearly all (``share``) of the paths tested there,
    and a good path shows that the node or one of the other ends works otherwise. With two nodes no third one can
    confirm, so the path is named, or, with ``one_of_two``, the node that cannot be dialed but can dial.
    """
    if not bad:
        return Blame()
    nodes = {node for path in (*bad, *good) for node in path}
    if one_of_two and len(nodes) == 2 and len(bad) == len(good) == 1:
        return Blame(inbound=tuple(target for _, target in bad))
    if not good and not set.intersection(*map(set, bad)):  # they have no node in common
        return Blame(everyone=True)
    left, by_end, good_by_end = set(bad), _by_end(bad), _by_end(good)
    suspects = set()
    for (node, side), paths in by_end.items():
        nearly_all = len(paths) >= share * (len(paths) + len(good_by_end.get((node, side), ())))
        others = {node, *(path[1 - side] for path in paths)}
        if nearly_all and any((other, 1 - side) in good_by_end for other in others):
            suspects.add((node, side))
    blamed: tuple[list[int], list[int]] = ([], [])
    while suspects:
        explained = {end: len(by_end[end] & left) for end in suspects}
        node, side = max(explained, key=lambda end: (explained[end], end[1], -end[0]))  # inbound first
        if explained[node, side] < 2:
            break
        blamed[side].append(node)
        suspects.discard((node, side))
        left -= by_end[node, side]
    outbound, inbound = (tuple(sorted(nodes)) for nodes in blamed)
    return Blame(inbound=inbound, outbound=outbound, paths=tuple(sorted(left)))


def both_ways(pairs: Iterable[Path]) -> set[Path]:
    """Return pairs without a direction as paths: a node that is blamed for them is bad on both sides."""
    return {path for node, peer in pairs for path in ((node, peer), (peer, node))}


def _by_end(paths: Iterable[Path]) -> dict[End, set[Path]]:
    ends: dict[End, set[Path]] = defaultdict(set)
    for path in paths:
        ends[path[OUTBOUND], OUTBOUND].add(path)
        ends[path[INBOUND], INBOUND].add(path)
    return ends
