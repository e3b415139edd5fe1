"""Where ranks first do different things in scaled steps, and what explains it already."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from ddp_doctor.facts.ddp.gradients import GradientSync, MixedPrecision, Scaled, ScaledStep
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.finding import Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.stock_ddp import remedies

RankSteps = list[tuple[int, ScaledStep]]


def scaled(recording: Recording) -> list[list[tuple[int, Scaled]]]:
    """What each rank saw, for each format of autocast that was looked at."""
    seen = recording.facts(MixedPrecision)
    looks = zip(*[[(one.rank or 0, look) for look in one.fact.scaled] for one in seen], strict=False)
    return [list(look) for look in looks if not any(one.not_looked for _, one in look)]


def apart(recording: Recording, look: Callable[[ScaledStep], Hashable]) -> RankSteps:
    """The first step in which ranks differ, empty where none is; what follows has the same cause."""
    for seen in scaled(recording):
        for number in range(min(len(one.steps) for _, one in seen)):
            steps = [(rank, one.steps[number]) for rank, one in seen]
            if len({look(step) for _, step in steps}) > 1:
                return steps
    return []


def odd(steps: RankSteps, look: Callable[[ScaledStep], Hashable]) -> tuple[list[int], Hashable]:
    """The ranks that differ from most, and what most have."""
    usual = Counter(look(step) for _, step in steps).most_common(1)[0][0]
    return [rank for rank, step in steps if look(step) != usual], usual


def few(ranks: Sequence[int], steps: RankSteps) -> Sequence[int]:
    """The ranks to blame: none where they are no minority."""
    return ranks if len(ranks) * 2 < len(steps) else ()


def off(recording: Recording) -> list[tuple[int, gradient_code.OffGradient]]:
    """The gradients under autocast that are not the mean."""
    return [(rank, one.off) for seen in scaled(recording) for rank, one in seen if one.off]


def known_before(recording: Recording) -> bool:
    """Whether gradient_sync found an ordinary step wrong already."""
    return any(rank.fact.step.off for rank in recording.facts(GradientSync))


def software(recording: Recording) -> tuple[Remedy, ...]:
    """What to try where stock DDP does it with a model of the doctor's own."""
    return remedies(recording.world.backend if recording.world else "", "mixed_precision")
