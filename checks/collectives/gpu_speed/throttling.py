"""DD805: a GPU whose clocks are held down while it works."""

from collections.abc import Iterator, Mapping, Sequence

from ddp_doctor.checks.collectives.gpu_speed import state, wording
from ddp_doctor.checks.collectives.gpu_speed.comparable import COPY, MATMUL, Measured, beside_others, rank_of
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import COOL_DOWN
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.gpus import LINES_OF_EVIDENCE
from ddp_doctor.wording.ranks import capital, rank_at, ranks_at


@rule("DD805", "gpu-slowed-under-load", Severity.WARNING, GpuSpeedFact)
def slowed_under_load(recording: Recording) -> Iterator[Draft]:
    """A GPU whose clocks are held down as soon as it works.

    What it finds
        Hardware slowdown, by heat, by the power brake or unnamed, in force in at least half of the looks
        during the matrix products; an error where the GPU is three times slower than its peers; information
        where the driver lowers the clocks for heat. A power cap is silent: a large GPU multiplies matrices
        at its power limit by right. What was in force before the load is DD308's.

    Why it matters
        The hardware halves the clock or worse, and in DDP every rank waits for the slowest.

    Remedy
        Have cooling and power supply of the node inspected.

    References
        NVML API reference, nvmlClocksEventReasons; docs/explanation/measurements.md
    """
    slowed = _slowed(recording)
    hard = slowed_by_hardware(recording)
    much = {rank for rank in hard if _times_slower(recording).get(rank, 1.0) >= gpu_speed.MUCH_SLOWER}
    for severity, ranks in (
        (Severity.ERROR, much),
        (Severity.WARNING, hard - much),
        (Severity.INFO, slowed.keys() - hard),
    ):
        if ranks:
            yield _draft(recording, [slowed[rank] for rank in sorted(ranks)], severity)


def slowed_by_hardware(recording: Recording) -> frozenset[int]:
    """The ranks whose GPU's hardware holds its clocks down under load, and did not before."""
    return frozenset(
        rank
        for rank, seen in _slowed(recording).items()
        if set(_in_force(seen.fact)) & set(gpu_speed.HARDWARE_SLOWDOWNS)
    )


def _slowed(recording: Recording) -> Mapping[int, Measured]:
    return recording.once("GPUs slowed under load", lambda: dict(_find(recording)))


def _find(recording: Recording) -> Iterator[tuple[int, Measured]]:
    before = {
        (node.node, gpu.uuid): gpu.clock_events or ()
        for node in recording.facts(GpusFact)
        for gpu in node.fact.gpus
    }
    for seen in recording.facts(GpuSpeedFact):
        known_before = before.get((seen.node, seen.fact.gpu_uuid), ())
        if set(_in_force(seen.fact)) - set(known_before):
            yield rank_of(seen), seen


def _in_force(fact: GpuSpeedFact) -> list[str]:
    if fact.load.looks < gpu_speed.FEWEST_LOOKS:
        return []
    shares = fact.load.clock_events
    return [
        name for name in gpu_speed.SLOWDOWNS_UNDER_LOAD if shares.get(name, 0.0) >= gpu_speed.IN_FORCE_SHARE
    ]


def _times_slower(recording: Recording) -> Mapping[int, float]:
    """How many times slower than its peers each GPU is, where it has enough of them."""
    found: dict[int, float] = {}
    for group in [*beside_others(recording, MATMUL), *beside_others(recording, COPY)]:
        if len(group) >= gpu_speed.FEWEST_TO_JUDGE:
            for one in group:
                found[rank_of(one.seen)] = max(found.get(rank_of(one.seen), 0.0), one.factor)
    return found


def _draft(recording: Recording, gpus: Sequence[Measured], severity: Severity) -> Draft:
    names = [name for seen in gpus for name in _in_force(seen.fact)]
    return proved(
        (wording.gpu_culprit(recording, rank_of(seen), seen.fact.gpu_uuid) for seen in gpus),
        f"{capital(ranks_at(recording, map(rank_of, gpus)))} under load: {wording.reasons(names)}",
        (*_lines(recording, gpus), *state.evidence(recording, gpus, gpus)),
        COOL_DOWN,
        detail="Seen by the driver during a fraction of a second of matrix products; a job lasts longer.",
        severity=severity,
    )


def _lines(recording: Recording, gpus: Sequence[Measured]) -> Iterator[Evidence]:
    slower = _times_slower(recording)
    for seen in gpus[:LINES_OF_EVIDENCE]:
        shares = seen.fact.load.clock_events
        told = ", ".join(f"{name} in {shares[name]:.0%}" for name in _in_force(seen.fact))
        factor = slower.get(rank_of(seen), 1.0)
        rate = (
            f"; {wording.slower(factor)} than its peers" if factor >= 1 / (1 - gpu_speed.SLOWER_SHARE) else ""
        )
        yield Evidence(
            text=f"{rank_at(recording, rank_of(seen))}: {told} of {seen.fact.load.looks} looks{rate}",
            expected_from="none of them in a well cooled and well fed GPU",
        )
