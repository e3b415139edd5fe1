"""DD801, DD802, DD805, DD808: a GPU that is slower than its peers, or whose clocks are held down, or all slow."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from ddp_doctor.checks.collectives.gpu_speed import comparison
from ddp_doctor.checks.collectives.gpu_speed.comparison import COPY, MATMUL, Measured, beside_others, judged, model
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.knowledge.severity import ERROR_TIMES, of_slowdown
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import COOL_DOWN
from ddp_doctor.views.gpus import power_limited
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, likely, possible, proved
from ddp_doctor.wording.ranks import capital, pair_culprit, rank_at, rank_of, ranks_at

_DETAIL = "In DDP, every rank waits for the slowest rank in every step."
#: Rates that are too low.
Slow = list[comparison.Compared]


@rule("DD801", "gpu-slower-than-its-peers", Consequence.SLOWER, GpuSpeedFact)
def gpu_slower_than_its_peers(recording: Recording) -> Iterator[Draft]:
    """A GPU is slower than the others of its model.

    Finds: Among three or more GPUs of one model, over all nodes, reports GPUs whose matrix products or memory copies
        are 10% or more below the median of the others. Severity is error from three times slower. The finding compares
        its clock, power and temperature under that load with its peers'. GPUs that others use, slices, and GPUs of two
        ranks are not compared, and DD805 reports a GPU that its hardware slows down. If its lowered power limit is a
        finding (DD318) and limits it, the cost of that limit is info.
    Why: Every rank waits for the slowest one in every step: one GPU in a thousand slows all of them.
    Remedy: Fix what differs: its power limit or clocks that a user set. Otherwise, check the GPU or its cooling.
    See: huggingface/gpu-fryer (10 % under the best GPU); NVIDIA/DCGM issue 122 (an A100 2.9 times slower
        beside seven within 1 %); docs/explanation/measurements.md
    """
    explained, limited = slowed_by_hardware(recording), power_limited(recording)
    for slow in _by_model(_slow_gpus(recording, sure=True)):
        left = [compared for compared in slow if rank_of(compared.gpu) not in explained]
        grades: dict[Severity, Slow] = {Severity.ERROR: [], Severity.WARNING: [], Severity.INFO: []}
        for rank in dict.fromkeys(rank_of(compared.gpu) for compared in left):
            rates = [compared for compared in left if rank_of(compared.gpu) == rank]
            grades[_grade(rates, limited)] += rates
        for severity, those in grades.items():
            if those:
                gpus, is_known = _gpus_by_rank(those), severity is Severity.INFO
                who = capital(ranks_at(recording, map(rank_of, gpus)))
                yield proved(
                    comparison.culprits(recording, gpus),
                    f"{who}: {_how_slow(those)} than on {those[0].others} other {those[0].gpu.fact.gpu_name} GPUs",
                    (*_rates(recording, those), *comparison.evidence(recording, gpus, gpus)),
                    *(() if is_known else comparison.remedies(recording, gpus)),
                    detail=f"The lowered power limit causes it (DD318). {_DETAIL}" if is_known else _DETAIL,
                    severity=severity,
                )


def _grade(rates: Slow, limited: frozenset[tuple[int, str]]) -> Severity:
    """Return the severity of one GPU's slow rates; ``limited`` are the GPUs whose power limit is a finding."""
    grade = of_slowdown(max(compared.factor for compared in rates))
    gpu = rates[0].gpu
    capped = gpu.fact.load.clock_events.get("sw_power_cap", 0.0) >= gpu_speed.IN_FORCE_SHARE
    own = (gpu.node, gpu.fact.gpu_uuid) in limited
    is_limit = own and capped and {compared.metric for compared in rates} == {MATMUL}
    return Severity.INFO if is_limit and grade is Severity.WARNING else grade


@rule("DD802", "gpus-of-one-model-unequally-fast", Consequence.SLOWER, GpuSpeedFact)
def gpus_of_one_model_unequally_fast(recording: Recording) -> Iterator[Draft]:
    """GPUs of one model differ in speed, and it is unknown which ones are normal.

    Finds: Reports two GPUs of one model, or as many slow ones as fast ones, whose matrix products or memory copies
        differ by 10% or more. Cards of different vendors account for some of this difference.
    Why: The faster ones wait for the slower ones in every step.
    Remedy: Compare clocks, power limits and temperatures under load.
    See: docs/explanation/measurements.md
    """
    explained = slowed_by_hardware(recording)
    for slow in _by_model(_slow_gpus(recording, sure=False)):
        below = _gpus_by_rank(slow)
        above = [gpu for gpu in judged(recording) if model(gpu) == model(below[0]) and gpu not in below]
        if above and not any(rank_of(gpu) in explained for gpu in below):
            ranks = [rank_of(gpu) for gpu in below], [rank_of(gpu) for gpu in above]
            pair = len(below) == len(above) == 1
            both = "both" if pair else "all"
            worst = max(compared.factor for compared in slow)
            yield likely(
                (pair_culprit(recording, ranks[0][0], ranks[1][0]),) if pair else comparison.culprits(recording, below),
                f"{capital(ranks_at(recording, ranks[0]))}: {_how_slow(slow)} than on"
                f" {ranks_at(recording, ranks[1])}, {both} {slow[0].gpu.fact.gpu_name}",
                (
                    *_rates(recording, slow),
                    *comparison.evidence(recording, below, below),
                    *comparison.evidence(recording, above, above),
                ),
                *comparison.remedies(recording, below),
                detail=f"{_DETAIL} It is unknown which GPU is at fault.",
                severity=of_slowdown(worst),
            )


def _slow_gpus(recording: Recording, *, sure: bool) -> Iterator[comparison.Compared]:
    """Yield the slow GPUs; with ``sure``, only GPUs that differ from a clear majority, otherwise the rest."""
    for group in [*beside_others(recording, MATMUL), *beside_others(recording, COPY)]:
        slow = [compared for compared in group if compared.is_below(gpu_speed.SLOWER_SHARE)]
        is_clear = len(group) >= gpu_speed.FEWEST_TO_JUDGE and 2 * len(slow) < len(group)
        if is_clear is sure:
            yield from slow


def _by_model(slow: Iterable[comparison.Compared]) -> list[Slow]:
    return list(grouped((model(compared.gpu), compared) for compared in slow).values())


def _gpus_by_rank(slow: Slow) -> list[Measured]:
    gpus = {rank_of(compared.gpu): compared.gpu for compared in slow}
    return [gpus[rank] for rank in sorted(gpus)]


def _how_slow(slow: Slow) -> str:
    """Return "matrix products 41 % slower and copies within its memory up to 12 % slower"."""
    parts = []
    for metric in dict.fromkeys(compared.metric for compared in slow):
        factors = [compared.factor for compared in slow if compared.metric is metric]
        up_to = "up to " if len(factors) > 1 else ""
        parts.append(f"{metric.words} {up_to}{comparison.slower(max(factors))}")
    return " and ".join(parts)


def _rates(recording: Recording, slow: Slow) -> Iterator[Evidence]:
    for compared in slow[:LINES_OF_EVIDENCE]:
        more = f" in {compared.gpu.fact.matmul_dtype}" if compared.metric is MATMUL else ""
        yield Evidence(
            text=f"{rank_at(recording, rank_of(compared.gpu))}, {compared.metric.words}{more}, "
            f"median of {compared.rate.repetitions} ({compared.rate.least:.4g} to {compared.rate.most:.4g})",
            value=round(compared.rate.median, 2),
            unit=compared.metric.unit,
            expected=round(compared.typical, 2),
            expected_from=f"median of the other {compared.others} of this run"
            if compared.others > 1
            else "the other GPU of this run",
        )


@rule("DD805", "gpu-slowed-under-load", Consequence.SLOWER, GpuSpeedFact)
def gpu_slowed_under_load(recording: Recording) -> Iterator[Draft]:
    """A GPU's clocks are reduced as soon as it works.

    Finds: Reports a hardware slowdown, due to heat, the power brake or an unnamed reason, in at least half of the
        samples during the matrix products. Severity is error if the GPU is three times slower than its peers, and info
        if the driver reduces the clocks due to heat. A power cap is not reported: a large GPU multiplies matrices at
        its power limit, as expected. DD308 reports slowdowns from before the load.
    Why: The hardware reduces the clocks to half or less, and in DDP, every rank waits for the slowest.
    Remedy: Have the cooling and power supply of the node inspected.
    See: NVML API reference, nvmlClocksEventReasons; docs/explanation/measurements.md
    """
    slowed = _slowed(recording)
    hard = slowed_by_hardware(recording)
    much = {rank for rank in hard if _times_slower(recording).get(rank, 1.0) >= ERROR_TIMES}
    for severity, ranks in (
        (Severity.ERROR, much),
        (Severity.WARNING, hard - much),
        (Severity.INFO, slowed.keys() - hard),
    ):
        if ranks:
            gpus = [slowed[rank] for rank in sorted(ranks)]
            names = [name for gpu in gpus for name in _in_force(gpu.fact)]
            yield proved(
                comparison.culprits(recording, gpus),
                f"{capital(ranks_at(recording, map(rank_of, gpus)))} under load: {comparison.reasons(names)}",
                (*_lines(recording, gpus), *comparison.evidence(recording, gpus, gpus)),
                COOL_DOWN,
                detail="The driver reported it during a fraction of a second of matrix products. A job lasts longer.",
                severity=severity,
            )


def slowed_by_hardware(recording: Recording) -> frozenset[int]:
    """Return the ranks whose GPU's hardware holds its clocks down under load, and did not before."""
    return frozenset(
        rank for rank, gpu in _slowed(recording).items() if set(_in_force(gpu.fact)) & set(gpu_speed.HARDWARE_SLOWDOWNS)
    )


@once_a_recording
def _slowed(recording: Recording) -> Mapping[int, Measured]:
    before = {
        (node.node, gpu.uuid): gpu.clock_events or () for node in recording.facts(GpusFact) for gpu in node.fact.gpus
    }
    return {
        rank_of(gpu): gpu
        for gpu in recording.facts(GpuSpeedFact)
        if not set(_in_force(gpu.fact)) <= set(before.get((gpu.node, gpu.fact.gpu_uuid), ()))
    }


def _in_force(fact: GpuSpeedFact) -> list[str]:
    if fact.load.looks < gpu_speed.FEWEST_LOOKS:
        return []
    shares = fact.load.clock_events
    return [name for name in gpu_speed.SLOWDOWNS_UNDER_LOAD if shares.get(name, 0.0) >= gpu_speed.IN_FORCE_SHARE]


def _times_slower(recording: Recording) -> Mapping[int, float]:
    found: dict[int, float] = {}
    for group in [*beside_others(recording, MATMUL), *beside_others(recording, COPY)]:
        if len(group) >= gpu_speed.FEWEST_TO_JUDGE:
            for compared in group:
                found[rank_of(compared.gpu)] = max(found.get(rank_of(compared.gpu), 0.0), compared.factor)
    return found


def _lines(recording: Recording, gpus: Sequence[Measured]) -> Iterator[Evidence]:
    slower = _times_slower(recording)
    for gpu in gpus[:LINES_OF_EVIDENCE]:
        shares = gpu.fact.load.clock_events
        reasons = ", ".join(f"{name} in {shares[name]:.0%}" for name in _in_force(gpu.fact))
        factor = slower.get(rank_of(gpu), 1.0)
        rate = f"; {comparison.slower(factor)} than its peers" if factor >= 1 / (1 - gpu_speed.SLOWER_SHARE) else ""
        yield Evidence(
            text=f"{rank_at(recording, rank_of(gpu))}: {reasons} of {gpu.fact.load.looks} samples{rate}",
            expected_from="none, with good cooling and power",
        )


#: A smaller matrix does not reach the published rates.
_SMALLEST = 4096


@rule("DD808", "gpu-model-below-published-rate", Consequence.SLOWER, GpuSpeedFact)
def gpu_model_below_published_rate(recording: Recording) -> Iterator[Draft]:
    """The matrix products of all GPUs of one model are far below published measurements.

    Finds: Reports a model whose median bf16 rate is below 60% of a published measurement. The finding is only possible:
        such tables are made with other clocks, power limits and sizes, and some are wrong.
    Why: If all peers are equally slow, comparing them shows no difference, for example if low clocks or power limits
        are set on all of them.
    Remedy: Check clocks and power limits under load.
    See: huggingface/gpu-fryer, README; docs/explanation/measurements.md
    """
    explained = slowed_by_hardware(recording)
    names = grouped(
        (gpu.fact.gpu_name or "", gpu)
        for gpu in judged(recording)
        if gpu.fact.matmul_tflop_per_s is not None
        and gpu.fact.matmul_size >= _SMALLEST
        and gpu.fact.matmul_dtype == "bfloat16"
        and rank_of(gpu) not in explained
    )
    for name, gpus in names.items():
        expected = gpu_speed.published_bf16(name)
        typical = median(rate.median for gpu in gpus if (rate := MATMUL.of(gpu)) is not None)
        if expected is not None and typical < gpu_speed.PUBLISHED_LEAST_SHARE * expected:
            ranks = ranks_at(recording, map(rank_of, gpus))
            yield possible(
                NOBODY,
                f"{capital(ranks)}: matrix products reach {typical:.0f} TFLOP/s instead of the {expected:.0f} TFLOP/s"
                f" published for {gpus[0].fact.gpu_name}",
                (
                    Evidence(
                        text=f"median of {len(gpus)} GPUs, matrices of {gpus[0].fact.matmul_size} rows",
                        value=round(typical, 1),
                        unit="TFLOP/s",
                        expected=expected,
                        expected_from=gpu_speed.PUBLISHED_BY,
                    ),
                    *comparison.evidence(recording, gpus[:4], gpus),
                ),
                *comparison.remedies(recording, gpus)[:1],
                detail="The rate of another machine is only a reference.",
            )
