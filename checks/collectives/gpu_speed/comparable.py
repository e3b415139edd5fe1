"""Which ranks' GPUs may be held against others, and the typical one among them."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.facts.collectives import GpuSpeedFact, Rate
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.views.gpus import BusyGpu, busy_gpus

Measured = FactAt[GpuSpeedFact]
_GIB = 1024**3


@dataclass(frozen=True)
class Metric:
    """One rate of the fact. ``alike`` is what must be equal between GPUs for it to be compared."""

    field: str
    words: str
    unit: str
    alike: Callable[[GpuSpeedFact], Hashable] = lambda _: None

    def of(self, seen: Measured) -> Rate | None:
        """What this rank measured."""
        rate: Rate | None = getattr(seen.fact, self.field)
        return rate


MATMUL = Metric(
    "matmul_tflop_per_s",
    "matrix products",
    "TFLOP/s",
    lambda fact: (fact.matmul_dtype, fact.matmul_size),
)
COPY = Metric("copy_gb_per_s", "copies within its memory", "GB/s", lambda fact: fact.copy_bytes)
INTO = Metric("host_to_device_gb_per_s", "copies from the host", "GB/s")
BACK = Metric("device_to_host_gb_per_s", "copies to the host", "GB/s")


@dataclass(frozen=True)
class Compared:
    """One rank's rate beside the median of the others'."""

    seen: Measured
    metric: Metric
    rate: Rate
    typical: float
    others: int

    @property
    def factor(self) -> float:
        """How many times slower it is than the others."""
        return self.typical / max(self.rate.median, 1e-9)

    def is_below(self, share: float) -> bool:
        """Whether it is slower by this share; what a GPU reached only once it still can."""
        return self.rate.median <= self.typical * (1 - share) and self.rate.most < self.typical


def rank_of(seen: Measured) -> int:
    """The rank, which a reading of a rank check always has."""
    return seen.rank or 0


def busy(recording: Recording) -> Mapping[int, BusyGpu | None]:
    """The ranks whose GPU somebody else used before the run; None where NVML did not tell who."""
    return recording.once("ranks on busy GPUs", lambda: dict(_busy(recording)))


def _busy(recording: Recording) -> Iterator[tuple[int, BusyGpu | None]]:
    told = {node.node: node.fact for node in recording.facts(GpusFact) if node.fact.gpus}
    by_uuid = {(node, gpu.uuid): gpu for node, fact in told.items() for gpu in busy_gpus(fact)}
    for seen in recording.facts(GpuSpeedFact):
        if seen.node in told:
            if (seen.node, seen.fact.gpu_uuid) in by_uuid:
                yield rank_of(seen), by_uuid[seen.node, seen.fact.gpu_uuid]
        elif _is_crowded(seen.fact):
            yield rank_of(seen), None


def _is_crowded(fact: GpuSpeedFact) -> bool:
    used = fact.memory_total_bytes - fact.memory_free_bytes
    return used > max(gpu_speed.OWN_USE_BYTES, gpu_speed.OWN_USE_SHARE * fact.memory_total_bytes)


def judged(recording: Recording) -> Sequence[Measured]:
    """The ranks with a whole GPU to themselves: no other program, no other rank, no other slice."""
    return recording.once("GPUs to compare", lambda: _judged(recording))


def _judged(recording: Recording) -> Sequence[Measured]:
    everyone = recording.facts(GpuSpeedFact)
    ranks = Counter(
        seen.fact.gpu_uuid or seen.rank for seen in everyone
    )  # no two GPUs in the world share one
    crowded = busy(recording)
    return [
        seen
        for seen in everyone
        if rank_of(seen) not in crowded
        and ranks[seen.fact.gpu_uuid or seen.rank] < 2
        and not seen.fact.load.mig_enabled
    ]


def model(seen: Measured) -> Hashable:
    """GPUs of one model: the name alone does not tell a card of 8 GB from one of 12."""
    return seen.fact.gpu_name, round(seen.fact.memory_total_bytes / _GIB)


def groups(
    seen: Sequence[Measured], metric: Metric, key: Callable[[Measured], Hashable] = model
) -> list[list[Compared]]:
    """Those that measured the metric alike, each beside the median of the others; slowest first."""
    by_key: dict[Hashable, list[tuple[float, Measured, Rate]]] = {}
    for one in seen:
        rate = metric.of(one)
        if rate is not None and one.fact.gpu_name:
            by_key.setdefault((key(one), metric.alike(one.fact)), []).append((rate.median, one, rate))
    return [_compared(group, metric) for group in by_key.values() if len(group) > 1]


def beside_others(recording: Recording, metric: Metric) -> list[list[Compared]]:
    """The GPUs of one model that can be compared, as ``groups`` gives them; several rules ask."""
    return recording.once(("compared", metric), lambda: groups(judged(recording), metric))


def _compared(group: list[tuple[float, Measured, Rate]], metric: Metric) -> list[Compared]:
    group.sort(key=lambda one: one[0])
    rates = [median for median, _, _ in group]
    return [
        Compared(seen, metric, rate, median_without(rates, at), len(group) - 1)
        for at, (_, seen, rate) in enumerate(group)
    ]


def median_without(ordered: Sequence[float], left_out: int) -> float:
    """The median of all but one of two or more values in order, without sorting them again for each."""
    last = len(ordered) - 2

    def at(place: int) -> float:
        return ordered[place + (place >= left_out)]

    return (at(last // 2) + at((last + 1) // 2)) / 2
