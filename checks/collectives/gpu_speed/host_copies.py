"""DD804: copies between a GPU and the host that are slower than its link, or than its peers'."""

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.collectives.gpu_speed import wording
from ddp_doctor.checks.collectives.gpu_speed.comparable import (
    BACK,
    INTO,
    Compared,
    Measured,
    Metric,
    groups,
    judged,
    model,
    rank_of,
)
from ddp_doctor.checks.collectives.gpu_speed.links import reduced_beside_peers
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.gpus import LINES_OF_EVIDENCE
from ddp_doctor.wording.ranks import capital, rank_at, ranks_at


@dataclass(frozen=True)
class Slow:
    """One way of one GPU that is too slow, and what it is held against."""

    seen: Measured
    metric: Metric
    rate: float
    expected: float
    expected_from: str


@rule("DD804", "gpu-copies-to-host-are-slow", Severity.WARNING, GpuSpeedFact)
def host_copies_slow(recording: Recording) -> Iterator[Draft]:
    """Copies between a GPU and pinned host memory that are far slower than they could be.

    What it finds
        Copies at half the rate of the peers' on equal links or less, an error from three times on; or, where
        no peer is better, below a third of what the PCIe link carries. Several GPUs that are all alike in
        this are information: that is how the machine is built. Memory of the other socket costs less than
        this. Encrypted copies (confidential computing) are not judged, nor a GPU that DD803 names.

    Why it matters
        Batches come this way; and where GPUs cannot reach each other, gradients too.

    Remedy
        Look at every link and switch between the processor and the GPU.

    References
        docs/explanation/measurements.md
    """
    beside_peers = list(_beside_peers(recording))
    named = {rank_of(one.seen) for one in beside_peers}
    much = {rank_of(one.seen) for one in beside_peers if one.expected >= gpu_speed.MUCH_SLOWER * one.rate}
    alone, alike = _beside_link(recording, named)
    for severity, those in (
        (Severity.ERROR, [one for one in beside_peers if rank_of(one.seen) in much]),
        (Severity.WARNING, [one for one in beside_peers if rank_of(one.seen) not in much] + alone),
        (Severity.INFO, alike),
    ):
        if those:
            yield _draft(recording, those, severity)


def _judged(recording: Recording) -> list[Measured]:
    elsewhere = reduced_beside_peers(recording)
    return [
        seen
        for seen in judged(recording)
        if rank_of(seen) not in elsewhere and not seen.fact.load.confidential
    ]


def _model_and_link(seen: Measured) -> Hashable:
    return model(seen), seen.fact.load.pcie_generation, seen.fact.load.pcie_width


def _beside_peers(recording: Recording) -> Iterator[Slow]:
    for metric in (INTO, BACK):
        for group in groups(_judged(recording), metric, _model_and_link):
            slow = [one for one in group if one.is_below(gpu_speed.HOST_COPY_SLOWER_SHARE)]
            if len(group) >= gpu_speed.FEWEST_TO_JUDGE and 2 * len(slow) < len(group):
                yield from map(_of_compared, slow)


def _of_compared(one: Compared) -> Slow:
    source = f"median of the other {one.others} of the model with such a link"
    return Slow(one.seen, one.metric, one.rate.median, one.typical, source)


def _beside_link(recording: Recording, named: Collection[int]) -> tuple[list[Slow], list[Slow]]:
    """The GPUs below a third of their link: those that have no peers, or better ones, and those all alike."""
    models: dict[Hashable, list[Measured]] = {}
    for seen in _judged(recording):
        models.setdefault(_model_and_link(seen), []).append(seen)
    alone: list[Slow] = []
    alike: list[Slow] = []
    for gpus in models.values():
        slow = [one for seen in gpus if rank_of(seen) not in named for one in _below_link(seen)]
        all_slow = len(gpus) > 1 and len({rank_of(one.seen) for one in slow}) == len(gpus)
        (alike if all_slow else alone).extend(slow)
    return alone, alike


def _below_link(seen: Measured) -> Iterator[Slow]:
    load = seen.fact.load
    link = gpu_speed.link_gb_per_s(load.pcie_generation, load.pcie_width)
    for metric in (INTO, BACK):
        rate = metric.of(seen)
        if link and rate and rate.most < link * gpu_speed.HOST_COPY_LEAST_SHARE_OF_LINK:
            source = f"what PCIe {load.pcie_generation} x{load.pcie_width} carries, read during the copies"
            yield Slow(seen, metric, rate.median, link, source)


def _draft(recording: Recording, slow: Sequence[Slow], severity: Severity) -> Draft:
    gpus = {rank_of(one.seen): one.seen for one in slow}
    worst = max(slow, key=lambda one: one.expected / one.rate)
    return finding(
        (wording.gpu_culprit(recording, rank, gpus[rank].fact.gpu_uuid) for rank in sorted(gpus)),
        f"{capital(ranks_at(recording, gpus))}: {worst.metric.words} at {worst.rate:.1f} GB/s where "
        f"{worst.expected:.1f} GB/s are expected",
        (_evidence(recording, one) for one in slow[:LINES_OF_EVIDENCE]),
        wording.FOLLOW_THE_PATH,
        confidence=Confidence.POSSIBLE if severity is Severity.INFO else Confidence.LIKELY,
        detail="Measured with pinned memory, while no other rank of the node copied.",
        severity=severity,
    )


def _evidence(recording: Recording, one: Slow) -> Evidence:
    return Evidence(
        text=f"{rank_at(recording, rank_of(one.seen))}, {one.metric.words}",
        value=round(one.rate, 2),
        unit="GB/s",
        expected=round(one.expected, 2),
        expected_from=one.expected_from,
    )
