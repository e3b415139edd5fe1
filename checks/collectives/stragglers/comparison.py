"""Who takes longer than its peers, how sure that is, and since when."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median, median_low

from ddp_doctor.facts.collectives import Sample, StragglersFact
from ddp_doctor.knowledge import stragglers
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.wording.ranks import rank_of

#: What is timed. A rank that has work is stopped by a quota, waits for its turn on a CPU, or stands still otherwise.
PRODUCTS, QUOTA, WAITS, STOPS, EXCHANGE, READS = (
    "products of the same matrices",
    "programs under its quota",
    "programs beside others",
    "programs",
    "exchanges with both neighbours",
    "reads of ",  # … large files, and so on
)
LOSSES = (QUOTA, WAITS, STOPS)
_LEAST = 1e-3


@dataclass(frozen=True)
class Slow:
    """One rank that takes longer than the usual one. ``is_sure``: beyond chance, nearly always, and among enough."""

    rank: FactAt[StragglersFact]
    work: str
    factor: float  # how many times as long as the usual rank it takes, by medians
    spread: float  # 1.4826 MAD of all samples of all compared ranks, as a share of what is usual
    slow_samples: Sequence[int]  # their numbers
    samples: int
    is_sure: bool = False


@once_a_recording
def slow_ranks(recording: Recording) -> Sequence[Slow]:
    """The ranks that take so much longer than the usual one that it matters, sure and unsure ones, for each work."""
    ranks = recording.facts(StragglersFact)
    costs = [
        ((work, rank.fact.model if work == PRODUCTS else ""), (rank_of(rank), cost))
        for rank in ranks
        for sample in rank.fact.samples
        for work, cost in _costs(sample).items()
    ]
    costs += [((EXCHANGE, ""), of_rank) for of_rank in _exchange_costs(ranks)]
    by_rank = {rank_of(rank): rank for rank in ranks}
    return [
        slow
        for (work, _), of_ranks in grouped(costs).items()
        for slow in _compared(by_rank, work, grouped(of_ranks), _least(recording, work))
    ]


def _costs(sample: Sample) -> dict[str, float]:
    """What one sample took, by work, each in a unit of its own."""
    # Kernels count a quota's stops as waits or do not. No load of a host changes the share of STOPS in the rest.
    stopped = min(sample.throttled_share or 0.0, sample.taken_share)
    waited = min(max((sample.waited_share or 0.0) - stopped, 0.0), sample.taken_share - stopped)
    left, had = max(1 - stopped, _LEAST), max(1 - stopped - waited, _LEAST)
    reads = {READS + name: 1 / rate for name, rate in sample.read_bytes_per_s.items() if rate}
    return {
        PRODUCTS: 1 / max(sample.products_per_s, _LEAST),
        QUOTA: 1 / left,
        WAITS: left / had,
        STOPS: had / max(1 - sample.taken_share, _LEAST),
        **reads,
    }


def _exchange_costs(ranks: Sequence[FactAt[StragglersFact]]) -> Iterator[tuple[int, float]]:
    """For each sample how many times slower than usual the faster of a rank's two exchanges was.

    Exchanges within a machine are held against others within machines, those across against others across.
    """
    machine = {rank_of(rank): rank.fact.machine for rank in ranks}
    for at_once in zip(*(rank.fact.samples for rank in ranks), strict=False):
        rates = [
            (machine.get(peer) == rank.fact.machine, rank_of(rank), rate)
            for rank, sample in zip(ranks, at_once, strict=True)
            for peer, rate in sample.exchanged_gb_per_s.items()
            if len(sample.exchanged_gb_per_s) > 1 and rate
        ]
        usual = {kind: median(of_kind) for kind, of_kind in grouped((kind, rate) for kind, _, rate in rates).items()}
        costs = grouped((rank, usual[kind] / rate) for kind, rank, rate in rates)
        yield from ((rank, min(both)) for rank, both in costs.items())


def _least(recording: Recording, work: str) -> float:
    if work == EXCHANGE:
        return stragglers.EXCHANGE_SLOWER_ON_NCCL if recording.on_nccl else stragglers.EXCHANGE_SLOWER
    return stragglers.READS_SLOWER if work.startswith(READS) else stragglers.SLOWER


def _compared(
    ranks: Mapping[int, FactAt[StragglersFact]], work: str, costs: Mapping[int, Sequence[float]], least: float
) -> Iterator[Slow]:
    costs = {rank: values for rank, values in costs.items() if len(values) >= stragglers.FEWEST_SAMPLES}
    if len(costs) < 2:
        return
    usual = median_low(median(values) for values in costs.values())
    spread = stragglers.OF_MAD * median(abs(value - usual) for values in costs.values() for value in values) / usual
    at_once = [median_low(values) for values in zip(*costs.values(), strict=False)]
    found = []
    for rank, values in costs.items():
        slow = [at for at, (value, often) in enumerate(zip(values, at_once, strict=False)) if value >= least * often]
        if slow and median(values) >= least * usual:
            found.append(Slow(ranks[rank], work, median(values) / usual, spread, slow, len(at_once)))
    lasting = [slow for slow in found if len(slow.slow_samples) >= stragglers.IN_SAMPLES * slow.samples]
    far_off = [slow for slow in lasting if slow.factor >= 1 + stragglers.SPREADS * spread]
    if work == WAITS:  # ranks that share their CPUs share their neighbours: who of them waits longer is chance
        places = {rank: (ranks[rank].fact.machine, ranks[rank].fact.cpus) for rank in costs}
        all_there, slow_there = Counter(places.values()), Counter(places[rank_of(slow.rank)] for slow in far_off)
        far_off = [slow for slow in far_off if 2 * slow_there[at := places[rank_of(slow.rank)]] > all_there[at]]
    if len(costs) < stragglers.FEWEST_TO_JUDGE or 2 * len(far_off) >= len(costs):
        far_off = []
    for slow_rank in found:
        by_quota = work == QUOTA and slow_rank in lasting  # no matter of comparison
        yield replace(slow_rank, is_sure=slow_rank in far_off or by_quota)


def since_s(recording: Recording, slow: Slow) -> float:
    """When its first slow sample began, in seconds since the run began, or else since the check did."""
    first = recording.facts(StragglersFact)[0].reading.started_at  # one clock: those of nodes differ
    try:
        began = datetime.fromisoformat(recording.started_at.replace("Z", "+00:00")).timestamp()
    except ValueError:
        began = first
    return max(first - began, 0.0) + slow.rank.fact.samples[slow.slow_samples[0]].at_s
