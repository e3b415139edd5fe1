"""The rounds of all ranks as one: a step is as slow as its slowest rank."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ddp_doctor.checks.ddp.step_time.thresholds import ON_CPU_SHARE
from ddp_doctor.facts.ddp.step_time import Round, StepTimeFact
from ddp_doctor.model.recording import FactAt, Recording

Seconds = tuple[float, ...]


@dataclass(frozen=True)
class Summary:
    """Seconds per round, of the slowest rank in that round."""

    fact: StepTimeFact  # the first rank's, which alone knows the time of one rank
    compute: Seconds
    again: Seconds
    step: Seconds
    communicate: Seconds
    alone: Seconds
    alone_larger: Seconds

    @property
    def computing(self) -> Seconds:
        """Forward and backward, the mean of both looks of a round."""
        return tuple((one + two) / 2 for one, two in zip(self.compute, self.again, strict=True))

    @property
    def noise_s(self) -> float:
        """The most by which the same computation differed from itself within a round."""
        return max(abs(one - two) for one, two in zip(self.compute, self.again, strict=True))

    @property
    def exposed(self) -> Seconds:
        """What synchronisation adds to a step, round by round; below zero it is noise."""
        return tuple(step - alone for step, alone in zip(self.step, self.computing, strict=True))

    @property
    def ratio(self) -> float:
        """Communication over computation."""
        return median(self.communicate) / median(self.computing)

    @property
    def overlap(self) -> float | None:
        """The share of communication that hides behind computing; None where there is too little of it to tell."""
        communicate = median(self.communicate)
        if communicate <= self.noise_s:
            return None
        return min(max(1 - median(self.exposed) / communicate, 0.0), 1.0)

    @property
    def weak_scaling(self) -> float | None:
        """One rank's step alone over that of all ranks, each with the same batch."""
        return median(self.alone) / median(self.step) if self.alone else None

    @property
    def one_rank_for_all(self) -> Seconds:
        """How long one rank alone needs for the batches of all, at most: larger batches one after another."""
        times = self.fact.ranks / self.fact.larger
        return tuple(times * one for one in self.alone_larger)

    @property
    def strong_scaling(self) -> float | None:
        """How many times faster all ranks are than one with the same work, for each rank."""
        if not self.alone_larger:
            return None
        return median(self.one_rank_for_all) / median(self.step) / self.fact.ranks


def summary(recording: Recording) -> Summary | None:
    """What all ranks' rounds say together; None where they were not measured, or not on all ranks."""
    seen = recording.facts(StepTimeFact)
    if not seen or len(seen) != seen[0].fact.ranks:
        return None
    first = next(
        (one.fact for one in seen if one.fact.rounds and one.fact.rounds[0].alone_s is not None), seen[0].fact
    )
    rounds = list(zip(*(one.fact.rounds for one in seen), strict=False))
    if not rounds:
        return None
    return Summary(
        fact=first,
        compute=_slowest(rounds, "compute_s"),
        again=_slowest(rounds, "again_s"),
        step=_slowest(rounds, "step_s"),
        communicate=_slowest(rounds, "communicate_s"),
        alone=tuple(one.alone_s for one in first.rounds if one.alone_s is not None),
        alone_larger=tuple(one.alone_larger_s for one in first.rounds if one.alone_larger_s is not None),
    )


def _slowest(rounds: Sequence[tuple[Round, ...]], name: str) -> Seconds:
    return tuple(max(getattr(rank, name) for rank in ranks) for ranks in rounds)


def crowded(recording: Recording) -> bool:
    """Whether ranks compute on processors that are too few for them, or that others use: times say little then."""
    return too_few_processors(recording) or mostly_disturbed(recording.facts(StepTimeFact))


def too_few_processors(recording: Recording) -> bool:
    """Whether the ranks of some node have more threads than processors."""
    nodes: dict[int, list[StepTimeFact]] = defaultdict(list)
    for seen in recording.facts(StepTimeFact):
        if seen.fact.device == "cpu":
            nodes[seen.node].append(seen.fact)
    return any(_are_too_few(facts) for facts in nodes.values())


def _are_too_few(facts: Sequence[StepTimeFact]) -> bool:
    cpus = {cpu for fact in facts for cpu in fact.cpus}
    return bool(cpus) and sum(fact.threads for fact in facts) > len(cpus)


def mostly_disturbed(seen: Sequence[FactAt[StepTimeFact]]) -> bool:
    """Whether most ranks did not have a processor for themselves."""
    shares = [one.fact.on_cpu_share for one in seen if one.fact.on_cpu_share is not None]
    return bool(shares) and median(shares) < ON_CPU_SHARE
