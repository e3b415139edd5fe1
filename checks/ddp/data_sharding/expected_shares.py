"""What the ranks' shares of a data set must be: together every index once, but for padding and drop_last.

Source: torch/utils/data/distributed.py, DistributedSampler. Without drop_last it repeats as many indices as make
the length a multiple of the ranks; with drop_last it leaves out as many as are over. Either is at most one
less than there are ranks, and all shares have one length.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Coverage:
    """How the shares of all ranks cover a data set: ``padded`` and ``dropped`` are by design, all else is wrong."""

    missing: tuple[int, ...] = ()  # indices that no rank has, beyond what drop_last may leave out
    repeated: Mapping[int, tuple[int, ...]] | None = None  # index: the ranks that have it, beyond the padding
    outside: Mapping[int, tuple[int, ...]] | None = None  # rank: its indices that the data set does not have
    padded: tuple[int, ...] = ()  # indices that came again to make the shares equal
    dropped: tuple[int, ...] = ()  # indices left out to make them equal

    @property
    def right(self) -> bool:
        """Whether every index is there as often as it must be."""
        return not (self.missing or self.repeated or self.outside)


def judge_indices(by_rank: Mapping[int, Sequence[int]], length: int, drop_last: bool) -> Coverage:
    """The coverage of a data set of ``length`` by the indices that each of all ranks takes in one epoch."""
    holders: dict[int, list[int]] = defaultdict(list)
    outside: dict[int, tuple[int, ...]] = {}
    for rank, indices in sorted(by_rank.items()):
        strange = tuple(index for index in indices if not 0 <= index < length)
        if strange:
            outside[rank] = strange
        for index in indices:
            holders[index].append(rank)
    missing = tuple(index for index in range(length) if index not in holders)
    repeated = {
        index: tuple(ranks)
        for index, ranks in sorted(holders.items())
        if len(ranks) > 1 and 0 <= index < length
    }
    again = sum(len(ranks) - 1 for ranks in repeated.values())
    may_drop = length % len(by_rank) if drop_last else 0
    may_pad = 0 if drop_last else -length % len(by_rank)
    drops, pads = len(missing) <= may_drop, again <= may_pad
    return Coverage(
        missing=() if drops else missing,
        repeated=None if pads or not repeated else repeated,
        outside=outside or None,
        padded=tuple(repeated) if pads else (),
        dropped=missing if drops else (),
    )


def behind(steps: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks that take fewer steps than others: there the others' collectives wait for ever."""
    most = max(steps.values(), default=0)
    return tuple(sorted(rank for rank, taken in steps.items() if taken < most))


def joined_mean(steps: Sequence[int], gradients: Sequence[float], by_initial: bool) -> float:
    """The sum of all steps' mean gradients under ``DDP.join()``; ``steps`` and ``gradients`` by group rank.

    Ranks that have ended add nothing to a step. It is divided by all ranks (``divide_by_initial_world_size``,
    DDP's default) or by those that still take part.
    """
    total = 0.0
    for step in range(max(steps, default=0)):
        taking = [gradient for gradient, taken in zip(gradients, steps, strict=True) if taken > step]
        total += sum(taking) / (len(steps) if by_initial else len(taking))
    return total
