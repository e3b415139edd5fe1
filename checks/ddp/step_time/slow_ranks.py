"""DD812: a rank that computes more slowly than its peers, with the same work and nobody to wait for."""

from collections.abc import Iterator, Sequence
from statistics import median

from ddp_doctor.checks.ddp.step_time import thresholds, wording
from ddp_doctor.checks.ddp.step_time.summary import mostly_disturbed, too_few_processors
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.facts.ddp.step_time import StepTimeFact
from ddp_doctor.knowledge.gpu.gpu_speed import SLOWER_SHARE
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.ranks import capital, rank_at, rank_culprits, ranks_at

_FEWEST_RANKS = 3
_FEWEST_LOOKS = 6
_LOOK = remedy(
    "Look at what else runs on the node, at the processors that the rank is bound to, and at clocks and"
    " temperature",
    "ps -eo pid,ni,psr,pcpu,comm --sort=-pcpu | head",
    "lscpu --extended",
    undo=NOTHING_TO_UNDO,
)


@rule("DD812", "rank-computes-slower-than-its-peers", Severity.WARNING, StepTimeFact)
def computes_slower(recording: Recording) -> Iterator[Draft]:
    """A rank whose forward and backward pass takes longer than that of the others, without synchronisation.

    What it finds
        Among three or more ranks those that needed at least a quarter more time than the median of the
        others, for the same work, in each and every look; a GPU from three times on is an error, but not with a
        model of yours, which may do more on one rank, nor if the ranks' batches differ in shape. A rank whose processor
        was taken away meanwhile is information: something else ran there. Where ranks are more than
        processors, or none had one for itself, nobody is named. What the speed of a GPU explains is said there (DD801).

    Why it matters
        In DDP every rank waits for the slowest in every step, and its peers look slow as well.

    Remedy
        What runs beside it, how it is bound, clocks and temperature.

    References
        docs/explanation/step-time.md
    """
    seen = recording.facts(StepTimeFact)
    if not all(one.fact.same_work for one in seen):
        return
    if len(seen) < _FEWEST_RANKS or too_few_processors(recording) or mostly_disturbed(seen):
        return
    looks = {one.rank or 0: _looks(one.fact) for one in seen}
    factors = {rank: _factor(rank, looks) for rank in looks}
    slow = sorted(rank for rank, factor in factors.items() if factor >= thresholds.SLOW_RANK)
    if 2 * len(slow) >= len(seen):  # of halves nobody can say which is as it should be
        return
    slow = [rank for rank in slow if rank not in _with_slow_gpu(recording)]
    if not slow:
        return
    by_rank = {one.rank or 0: one for one in seen}
    worst = max(slow, key=lambda rank: factors[rank])
    disturbed = all(_is_disturbed(by_rank[rank]) for rank in slow)
    yield likely(
        rank_culprits(recording, StepTimeFact, slow),
        f"{capital(ranks_at(recording, slow))} {'computes' if len(slow) == 1 else 'compute'}"
        f" {_typical(worst, looks):.1f} times as long as the others for the same work"
        f"{wording.of(by_rank[worst].fact.model)}",
        _evidence(recording, slow, looks),
        _LOOK,
        detail=_detail([by_rank[rank] for rank in slow], disturbed=disturbed),
        severity=_severity(by_rank[worst].fact, factors[worst], disturbed=disturbed),
    )


def _looks(fact: StepTimeFact) -> list[float]:
    return [took for one in fact.rounds for took in (one.compute_s, one.again_s)]


def _others(rank: int, looks: dict[int, list[float]]) -> list[float]:
    """The median of the others at each look."""
    return [median(at) for at in zip(*(took for other, took in looks.items() if other != rank), strict=False)]


def _factor(rank: int, looks: dict[int, list[float]]) -> float:
    """How many times slower it was, where it was least so against the others' slowest look: never one sample."""
    others = _others(rank, looks)
    return min(looks[rank]) / max(others) if len(looks[rank]) >= _FEWEST_LOOKS else 0.0


def _typical(rank: int, looks: dict[int, list[float]]) -> float:
    return median(looks[rank]) / median(_others(rank, looks))


def _with_slow_gpu(recording: Recording) -> set[int]:
    """The ranks whose GPU multiplies more slowly than the others: that is a finding of its own."""
    rates = {
        rank.rank or 0: rank.fact.matmul_tflop_per_s.median
        for rank in recording.facts(GpuSpeedFact)
        if rank.fact.matmul_tflop_per_s is not None
    }
    usual = median(rates.values()) if rates else 0.0
    return {rank for rank, rate in rates.items() if rate < (1 - SLOWER_SHARE) * usual}


def _is_disturbed(seen: FactAt[StepTimeFact]) -> bool:
    return seen.fact.on_cpu_share is not None and seen.fact.on_cpu_share < thresholds.ON_CPU_SHARE


def _detail(slow: Sequence[FactAt[StepTimeFact]], *, disturbed: bool) -> str:
    waited = "In DDP every rank waits for the slowest one, in every step."
    if slow[0].fact.model:
        waited += (
            " All had the same batch; what the model does on this rank only (logging, checks) counts too."
        )
    if not disturbed:
        return waited
    share = min(one.fact.on_cpu_share or 0.0 for one in slow)
    return f"It had a processor {share:.0%} of the time: something else ran there. {waited}"


def _severity(fact: StepTimeFact, factor: float, *, disturbed: bool) -> Severity:
    """What a host takes from a virtual machine does not show there: a slow processor alone drains no node.

    Neither does a model of the user's, which may do more on one rank.
    """
    if disturbed:
        return Severity.INFO
    sure = fact.device != "cpu" and not fact.model
    return Severity.ERROR if sure and factor >= thresholds.MUCH_SLOWER else Severity.WARNING


def _evidence(recording: Recording, slow: Sequence[int], looks: dict[int, list[float]]) -> Iterator[Evidence]:
    for rank in slow[:4]:
        others = _others(rank, looks)
        yield Evidence(
            text=f"forward and backward on {rank_at(recording, rank)}, {len(others)} looks,"
            f" {wording.limits(looks[rank])}, its peers {wording.limits(others)}",
            value=median(looks[rank]),
            unit="s",
            expected=median(others),
            expected_from="the median of the other ranks, which did the same work at the same time",
        )
