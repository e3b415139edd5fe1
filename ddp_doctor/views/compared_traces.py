"""Traces of two jobs beside each other: what changed in a step by more than noise, and how well ranks share work."""

from typing import NamedTuple

from ddp_doctor.facts.cluster import UNKNOWN_GPU, TracesFact
from ddp_doctor.knowledge.baselines import CHANGED_MADS, CHANGED_SHARE

#: The parts of a step; "exposed" stands for waiting and transfer where one side cannot tell them apart.
_TOLD = ("compute", "optimizer", "waiting", "transfer", "loading", "host", "other")
_NOT_TOLD = ("compute", "optimizer", "exposed", "loading", "host", "other")
_WORDS = {"exposed": "waiting or transfer", "other": "copies"}
#: Samples that differ by less are the same batch.
_SAME_BATCH = 0.01


class Change(NamedTuple):
    """A part of the step, microseconds of as many samples on both sides."""

    part: str
    before: float
    now: float
    noise: float  # what is no more than this is no change

    @property
    def more(self) -> float:
        """Negative where it became less."""
        return self.now - self.before

    @property
    def is_seen(self) -> bool:
        """Whether it is more than noise."""
        return abs(self.more) > self.noise


def scale(fact: TracesFact) -> float:
    """What makes a step of now one of as many samples as before."""
    before, now = fact.before.samples, fact.now.samples
    return before / now if before and now and abs(before / now - 1) > _SAME_BATCH else 1.0


def changes(fact: TracesFact) -> tuple[Change, ...]:
    """The whole step first, then its parts."""
    is_told = not any(each.parts["not_told"].median_us for each in (fact.before, fact.now))
    by, least = scale(fact), CHANGED_SHARE * fact.before.parts["step"].median_us
    pairs = [
        (name, fact.before.parts[name], fact.now.parts[name]) for name in ("step", *(_TOLD if is_told else _NOT_TOLD))
    ]
    return tuple(
        Change(
            _WORDS.get(name, name),
            before.median_us,
            by * now.median_us,
            max(least, CHANGED_MADS * max(before.mad_us, by * now.mad_us)),
        )
        for name, before, now in pairs
    )


def efficiency(fact: TracesFact) -> float:
    """What a rank of the larger job does in a time, of what one of the smaller does."""
    step = changes(fact)[0]
    fewer, more = (step.before, step.now) if fact.now.ranks > fact.before.ranks else (step.now, step.before)
    return fewer / more


def other_gpus(fact: TracesFact) -> bool:
    """Return True if the two traces are known to be of different GPUs, or one of CPUs."""
    unknown = UNKNOWN_GPU in (*fact.before.gpus, *fact.now.gpus)
    return fact.before.gpus != fact.now.gpus and not (unknown and fact.before.gpus and fact.now.gpus)
