"""Which GPU has fewer NVLinks than it should, judged by its peers in the same matrix.

A table of link counts would be wrong as often as right: 12 on an H100 NVL, 6 on each of four H100
on one board, and 8 on an A800 are all in order. So GPUs are compared only where wiring makes them alike:

* behind NVSwitch, where every GPU reaches every other over as many links as the poorer of both has;
* bridged in pairs, where each pair has one bridge of the same kind.

A mesh without switches (eight V100 or P100) mixes NV1 and NV2 by design and is left alone, and so are
small groups, in which nobody can say who is the odd one out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: So many GPUs, or pairs, must agree before another counts as short.
_LEAST_WITNESSES = 3

Pair = tuple[str, str]


@dataclass(frozen=True)
class Shortfall:
    """GPUs (one, or both ends of a bridge) with ``links`` where their peers have ``expected``."""

    gpus: tuple[str, ...]
    links: int
    expected: int


def shortfalls(gpus: Sequence[str], pairs: Mapping[Pair, int]) -> list[Shortfall]:
    """Who is short; ``pairs`` holds the number of NVLinks of every pair of ``gpus``, 0 for none.

    Nobody where a pair is left out because its rows disagree: with MIG on one GPU, nvidia-smi does not
    show its NVLinks.
    """
    if len(pairs) < len(gpus) * (len(gpus) - 1) // 2:
        return []
    linked = {pair: links for pair, links in pairs.items() if links}
    partners = {gpu: sum(gpu in pair for pair in linked) for gpu in gpus}
    with_links = [gpu for gpu in gpus if partners[gpu]]
    if all(partners[gpu] == 1 for gpu in with_links):
        return _short_bridges(linked)
    if all(partners[gpu] == len(with_links) - 1 for gpu in with_links):
        without = [gpu for gpu in gpus if not partners[gpu]]
        return _short_behind_switch(with_links, linked, without)
    return []


def _short_bridges(linked: Mapping[Pair, int]) -> list[Shortfall]:
    most = max(linked.values(), default=0)
    return [
        Shortfall(pair, links, most)
        for pair, links in linked.items()
        if links < most and _enough(list(linked.values()))
    ]


def _short_behind_switch(
    gpus: Sequence[str], linked: Mapping[Pair, int], without: Sequence[str]
) -> list[Shortfall]:
    own = {gpu: max(links for pair, links in linked.items() if gpu in pair) for gpu in gpus}
    switched = all(links == min(own[one], own[two]) for (one, two), links in linked.items())
    if not switched or not _enough(list(own.values())):
        return []
    most = max(own.values())
    short = [Shortfall((gpu,), links, most) for gpu, links in own.items() if links < most]
    return short + [Shortfall((gpu,), 0, most) for gpu in without]


def _enough(counts: Sequence[int]) -> bool:
    """Whether those with the most links are enough, and more than the others."""
    top = counts.count(max(counts))
    return top >= _LEAST_WITNESSES and top > len(counts) - top
