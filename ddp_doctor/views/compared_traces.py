"""Compare the traces of two jobs: the changes of a step beyond noise, and how well ranks share work."""

from typing import NamedTuple

from ddp_doctor.facts.cluster import UNKNOWN_GPU, TracesFact
from ddp_doctor.knowledge.baselines import CHANGED_MADS, CHANGED_SHARE

#: The parts of a step; "exposed" is waiting and transfer together, if one side cannot distinguish them.
_TOLD = ("compute", "optimizer", "waiting", "transfer", "loading", "host", "other")
_NOT_TOLD = ("compute", "optimizer", "exposed", "loading", "host", "other")
_WORDS = {"exposed": "waiting or transfer", "other": "copies"}
#: Samples that differ by less are the same batch.
_SAME_BATCH = 0.01


class Change(NamedTuple):
    """A part of the step, in microseconds for the same number of samples on both sides."""

    part: str
    before: float
    now: float
    noise: float  # changes up to this are ignored

    @property
    def more(self) -> float:
        """The increase; negative if the part became shorter."""
        return self.now - self.before

    @property
    def is_seen(self) -> bool:
        """True if the change is larger than noise."""
        return abs(self.more) > self.noise


def scale(fact: TracesFact) -> float:
    """Return the factor that scales a current step to the earlier number of samples."""
    before, now = fact.before.samples, fact.now.samples
    return before / now if before and now and abs(before / now - 1) > _SAME_BATCH else 1.0


def changes(fact: TracesFact) -> tuple[Change, ...]:
    """Return the changes of the complete step, then of its parts."""
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
    """Return the work of a rank of the larger job per time, as a share of the smaller job's."""
    step = changes(fact)[0]
    fewer, more = (step.before, step.now) if fact.now.ranks > fact.before.ranks else (step.now, step.before)
    return fewer / more


def other_gpus(fact: TracesFact) -> bool:
    """Return True if the two traces are known to be of different GPUs, or one of CPUs."""
    unknown = UNKNOWN_GPU in (*fact.before.gpus, *fact.now.gpus)
    return fact.before.gpus != fact.now.gpus and not (unknown and fact.before.gpus and fact.now.gpus)
