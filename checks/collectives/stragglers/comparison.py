"""Who takes longer than its peers, how sure that is, and since when."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from statistics import median, median_low

from ddp_doctor.facts.collectives import DataRates, Sample, StragglersFact
from ddp_doctor.knowledge import stragglers
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.wording.ranks import rank_of

Sampled = FactAt[StragglersFact]


class Work(Enum):
    """What is timed, as a sentence has it."""

    PRODUCTS = "products of the same matrices"
    WAITS = "programs"
    STOPS = "all programs"
    SEQUENTIAL = "reads of large files of the data"
    SMALL = "reads of small pieces of the data"
    WORKERS = "reads of the data by four workers"
    EXCHANGE = "exchanges with both of its neighbours"


#: What processor time is lost by: a rank waits for its turn on a CPU, or stands still on it.
LOSSES = (Work.WAITS, Work.STOPS)
_LEAST = 1e-3
READS = (Work.SEQUENTIAL, Work.SMALL, Work.WORKERS)
#: What one sample took, in any unit; None where that was not measured.
_COSTS: Mapping[Work, Callable[[Sample], float | None]] = {
    Work.PRODUCTS: lambda sample: 1 / sample.products_per_s if sample.products_per_s else None,
    Work.WAITS: lambda sample: None if sample.waited_share is None else 1 / max(1 - sample.waited_share, _LEAST),
    Work.STOPS: lambda sample: 1 / max(1 - _stopped_share(sample), _LEAST),
    Work.SEQUENTIAL: lambda sample: _inverse(sample.data and sample.data.sequential_bytes_per_s),
    Work.SMALL: lambda sample: _inverse(sample.data and sample.data.small_bytes_per_s),
    Work.WORKERS: lambda sample: _inverse(sample.data and sample.data.workers_bytes_per_s),
}


def _stopped_share(sample: Sample) -> float:
    """Of the time in which it did not wait for a CPU, in which the loop stood still: no load of a host changes that."""
    waited = min(sample.waited_share or 0.0, sample.taken_share)
    return (sample.taken_share - waited) / max(1 - waited, _LEAST)


def _inverse(rate: float | DataRates | None) -> float | None:
    return 1 / rate if isinstance(rate, float) and rate > 0 else None


@dataclass(frozen=True)
class Slow:
    """One rank that takes longer than the usual one. ``is_sure``: beyond chance, nearly always, and among enough."""

    rank: Sampled
    work: Work
    factor: float  # how many times as long as the usual rank it takes, by medians
    spread: float  # 1.4826 MAD of all samples of all compared ranks, as a share of what is usual
    others: int
    slow_samples: Sequence[int]  # their numbers
    samples: int
    is_sure: bool

    @property
    def is_throttled(self) -> bool:
        """Whether a CPU quota stopped it in nearly all of its slow samples."""
        of_group = [self.rank.fact.samples[number].throttled or 0 for number in self.slow_samples]
        return sum(map(bool, of_group)) >= stragglers.IN_SAMPLES * len(of_group)


@once_a_recording
def slow_ranks(recording: Recording, work: Work) -> Sequence[Slow]:
    """The ranks that take so much longer than the usual one that it matters, sure and unsure ones."""
    ranks = recording.facts(StragglersFact)
    if work is Work.EXCHANGE:
        least = stragglers.EXCHANGE_SLOWER_ON_NCCL if recording.on_nccl else stragglers.EXCHANGE_SLOWER
        return list(_compared(ranks, work, least, _exchange_costs(ranks)))
    least = stragglers.DATA_SLOWER if work in READS else stragglers.SLOWER
    alike = grouped((rank.fact.model if work is Work.PRODUCTS else "", rank) for rank in ranks)
    costs = {
        rank_of(rank): [cost for sample in rank.fact.samples if (cost := _COSTS[work](sample)) is not None]
        for rank in ranks
    }
    return [slow for group in alike.values() for slow in _compared(group, work, least, costs)]


def _compared(
    ranks: Sequence[Sampled], work: Work, least: float, costs_by_rank: Mapping[int, Sequence[float]]
) -> Iterator[Slow]:
    costs = {rank_of(rank): costs_by_rank[rank_of(rank)] for rank in ranks}
    costs = {rank: values for rank, values in costs.items() if len(values) >= stragglers.FEWEST_SAMPLES}
    if len(costs) < 2:
        return
    usual = median_low(median(values) for values in costs.values())
    spread = stragglers.OF_MAD * median(abs(value - usual) for values in costs.values() for value in values) / usual
    of_all = [median_low(values) for values in zip(*costs.values(), strict=False)]
    found = []
    for rank in ranks:
        values = costs.get(rank_of(rank), ())
        slow = [at for at, (value, often) in enumerate(zip(values, of_all, strict=False)) if value >= least * often]
        if not slow or (factor := median(values) / usual) < least:
            continue
        is_lasting = len(slow) >= stragglers.IN_SAMPLES * len(of_all)
        is_sure = is_lasting and factor >= 1 + stragglers.SPREADS * spread
        found.append(Slow(rank, work, factor, spread, len(costs) - 1, slow, len(of_all), is_sure))
    is_clear = len(costs) >= stragglers.FEWEST_TO_JUDGE and 2 * sum(slow.is_sure for slow in found) < len(costs)
    for each in found:
        lasts = len(each.slow_samples) >= stragglers.IN_SAMPLES * each.samples
        by_quota = work in LOSSES and each.is_throttled and lasts  # which is no matter of comparison
        yield replace(each, is_sure=(each.is_sure and is_clear) or by_quota)


def _exchange_costs(ranks: Sequence[Sampled]) -> dict[int, list[float]]:
    """For each sample how many times slower than usual the faster of a rank's two exchanges was.

    Those within a machine are held against others within machines, those across against others across.
    """
    machine = {rank_of(rank): rank.fact.machine for rank in ranks}
    rates = [
        ((number, machine.get(peer) == rank.fact.machine), (rank_of(rank), rate))
        for rank in ranks
        for number, sample in enumerate(rank.fact.samples)
        for peer, rate in sample.exchanged_gb_per_s.items()
        if len(sample.exchanged_gb_per_s) > 1 and rate > 0
    ]
    costs = dict[tuple[int, int], float]()
    for (number, _), of_ranks in grouped(rates).items():
        usual = median(rate for _, rate in of_ranks)
        for rank, rate in of_ranks:
            costs[rank, number] = min(costs.get((rank, number), usual / rate), usual / rate)
    return {
        rank_of(rank): [
            costs[rank_of(rank), number] for number in range(len(rank.fact.samples)) if (rank_of(rank), number) in costs
        ]
        for rank in ranks
    }


def since_s(recording: Recording, slow: Slow) -> float | None:
    """When its first slow sample began, in seconds since the run began; None where that is not recorded."""
    first = recording.facts(StragglersFact)[0].reading.started_at  # of one clock: nodes' clocks differ
    try:
        began = datetime.fromisoformat(recording.started_at.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
    return max(first - began, 0.0) + slow.rank.fact.samples[slow.slow_samples[0]].at_s
