"""A finished trial keeps only the steps that some rank entered late, and the step before each of them."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from statistics import median

from ddp_doctor.knowledge.deadlines import LATE_ENTRY_S
from ddp_doctor.model.trial import RankEvidence, Step

Key = tuple[str, int]


def late_steps(evidence: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Drop all steps but those that some rank entered LATE_ENTRY_S after the median rank, and the one before.

    A slow link in the step before makes a rank late through no fault of its own.
    """
    entered: dict[Key, list[float]] = defaultdict(list)
    for rank in evidence:
        for step in rank.steps:
            entered[_key(step)].append(step.entered_at)
    late = {key for key, times in entered.items() if max(times) - median(times) > LATE_ENTRY_S}
    return [_only(rank, late) for rank in evidence]


def _only(rank: RankEvidence, keys: set[Key]) -> RankEvidence:
    steps = tuple(
        step
        for step, after in zip_longest(rank.steps, rank.steps[1:])
        if _key(step) in keys or (after is not None and _key(after) in keys)
    )
    return rank.model_copy(update={"steps": steps})


def _key(step: Step) -> Key:
    return step.check, step.seq
