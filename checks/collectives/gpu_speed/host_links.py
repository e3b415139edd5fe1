"""DD803, DD804: a reduced PCIe link, and slow copies between a GPU and the host."""

from collections.abc import Collection, Hashable, Iterator
from statistics import median_high

from ddp_doctor.checks.collectives.gpu_speed import comparison
from ddp_doctor.checks.collectives.gpu_speed.comparison import BACK, INTO, Measured, beside_others, judged, model
from ddp_doctor.facts.collectives import GpuLoad, GpuSpeedFact
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.knowledge.severity import ERROR_TIMES
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, finding
from ddp_doctor.wording.ranks import capital, rank_at, rank_of, ranks_at

#: Copies that are too slow.
Slow = list[comparison.Compared]
#: Up to this share of a model's GPUs is a fault; a larger share shows how the machines are built.
_FEW = 0.25


@rule("DD803", "gpu-pcie-link-reduced", Consequence.SLOWER, GpuSpeedFact)
def gpu_pcie_link_reduced(recording: Recording) -> Iterator[Draft]:
    """A GPU's PCIe link is narrower or slower than the GPU allows, during copies over it.

    Finds: Reports a PCIe generation or width below the highest that the driver lists for the GPU. It is read during the
        copies, because an idle link is reduced to save power. Severity is warning if the link has fewer lanes, or if at
        least three GPUs of the model have a better link and only few do not. It is error if the copies are also three
        times slower, and info if all lanes run at an older generation, because many machines have no newer one.
    Why: All data of a rank goes through this link, and also gradients if the GPUs have no NVLink.
    Remedy: Check the slot, riser and cable, and reseat the GPU.
    See: nvidia-smi, pcie.link.gen.current: may be reduced when the GPU is not in use;
        docs/explanation/measurements.md
    """
    reduced = [gpu for gpu in _gpus_with_link_in_use(recording) if _is_reduced(gpu.fact.load)]
    few = reduced_beside_peers(recording)
    both_ways = (
        compared for metric in (INTO, BACK) for group in beside_others(recording, metric) for compared in group
    )
    slow = few & {rank_of(compared.gpu) for compared in both_ways if compared.factor >= ERROR_TIMES}
    alike = [gpu for gpu in reduced if rank_of(gpu) not in few]
    for severity, those in (
        (Severity.ERROR, [gpu for gpu in reduced if rank_of(gpu) in slow]),
        (Severity.WARNING, [gpu for gpu in reduced if rank_of(gpu) in few - slow]),
        (Severity.WARNING, [gpu for gpu in alike if _has_fewer_lanes(gpu.fact.load)]),
        (Severity.INFO, [gpu for gpu in alike if not _has_fewer_lanes(gpu.fact.load)]),
    ):
        if those:
            is_fault = rank_of(those[0]) in few
            links = " and ".join(sorted({_now(gpu.fact.load) for gpu in those}))
            most = " and ".join(sorted({_most(gpu.fact.load) for gpu in those}))
            whose = "Its peers have more" if is_fault else "Some slots are wired with fewer lanes"
            yield finding(
                comparison.culprits(recording, those),
                f"{capital(ranks_at(recording, map(rank_of, those)))}: PCIe link runs at {links},"
                f" but {most} is supported",
                (_link_evidence(recording, gpu) for gpu in those[:LINES_OF_EVIDENCE]),
                comparison.RESEAT,
                confidence=Confidence.LIKELY if is_fault else Confidence.POSSIBLE,
                detail=f"{whose}. Read during copies over the link, so it was not reduced to save power.",
                severity=severity,
            )


@once_a_recording
def reduced_beside_peers(recording: Recording) -> frozenset[int]:
    """Return the few ranks whose GPU has a reduced link although its peers have a better one."""
    ranks: set[int] = set()
    for gpus in grouped((model(gpu), gpu) for gpu in _gpus_with_link_in_use(recording)).values():
        typical = median_high([_rate(gpu.fact.load) for gpu in gpus])
        worse = [gpu for gpu in gpus if _is_reduced(gpu.fact.load) and _rate(gpu.fact.load) < typical]
        better = sum(_rate(gpu.fact.load) >= typical for gpu in gpus)
        if better >= gpu_speed.FEWEST_TO_JUDGE and len(worse) <= _FEW * len(gpus):
            ranks.update(map(rank_of, worse))
    return frozenset(ranks)


def _gpus_with_link_in_use(recording: Recording) -> list[Measured]:
    return [
        gpu
        for gpu in recording.facts(GpuSpeedFact)
        if gpu.fact.host_to_device_gb_per_s is not None and _rate(gpu.fact.load) > 0
    ]


def _rate(load: GpuLoad) -> float:
    return gpu_speed.link_gb_per_s(load.pcie_generation, load.pcie_width) or 0.0


def _is_reduced(load: GpuLoad) -> bool:
    generation = load.pcie_generation_max
    return (generation is not None and (load.pcie_generation or 0) < generation) or _has_fewer_lanes(load)


def _has_fewer_lanes(load: GpuLoad) -> bool:
    return load.pcie_width_max is not None and (load.pcie_width or 0) < load.pcie_width_max


def _now(load: GpuLoad) -> str:
    return f"Gen{load.pcie_generation} x{load.pcie_width}"


def _most(load: GpuLoad) -> str:
    return f"Gen{load.pcie_generation_max or load.pcie_generation} x{load.pcie_width_max or load.pcie_width}"


def _link_evidence(recording: Recording, gpu: Measured) -> Evidence:
    into, back = gpu.fact.host_to_device_gb_per_s, gpu.fact.device_to_host_gb_per_s
    rates = [f"{rate.median:.1f} GB/s {way} it" for rate, way in ((into, "to"), (back, "from")) if rate]
    return Evidence(
        text=f"{rank_at(recording, rank_of(gpu))}: PCIe {_now(gpu.fact.load)} at most, copies {', '.join(rates)}",
        expected_from=f"the GPU's own highest, {_most(gpu.fact.load)}",
    )


@rule("DD804", "gpu-copies-to-host-are-slow", Consequence.SLOWER, GpuSpeedFact)
def gpu_copies_to_host_are_slow(recording: Recording) -> Iterator[Draft]:
    """Copies between a GPU and pinned host memory are much slower than possible.

    Finds: Reports copies at half the rate of peers on equal links or less. If no peer is better, reports copies below a
        third of the PCIe link's rate. If several GPUs all have this rate, severity is info, because the machine is
        built that way. Memory on the other socket reduces the rate less than this. Not reported for encrypted copies
        (confidential computing) or for a GPU that DD803 names.
    Why: Batches use this path, and also gradients if GPUs cannot reach each other.
    Remedy: Check every link and switch between the processor and the GPU.
    See: docs/explanation/measurements.md
    """
    beside_peers = list(_beside_peers(recording))
    named = {rank_of(copy.gpu) for copy in beside_peers}
    alone, uniform = _beside_link(recording, named)
    faults = [*beside_peers, *alone]
    much = {rank_of(copy.gpu) for copy in faults if copy.factor >= ERROR_TIMES}
    for severity, those in (
        (Severity.ERROR, [copy for copy in faults if rank_of(copy.gpu) in much]),
        (Severity.WARNING, [copy for copy in faults if rank_of(copy.gpu) not in much]),
        (Severity.INFO, uniform),
    ):
        if those:
            gpus = {rank_of(copy.gpu): copy.gpu for copy in those}
            worst = max(those, key=lambda copy: copy.factor)
            yield finding(
                comparison.culprits(recording, (gpus[rank] for rank in sorted(gpus))),
                f"{capital(ranks_at(recording, gpus))}: {worst.metric.words} reach {worst.rate.median:.1f} GB/s"
                f" instead of the expected {worst.typical:.1f} GB/s",
                (
                    Evidence(
                        text=f"{rank_at(recording, rank_of(copy.gpu))}, {copy.metric.words}",
                        value=round(copy.rate.median, 2),
                        unit="GB/s",
                        expected=round(copy.typical, 2),
                        expected_from=_expected_from(copy),
                    )
                    for copy in those[:LINES_OF_EVIDENCE]
                ),
                comparison.FOLLOW_THE_PATH,
                confidence=Confidence.POSSIBLE if severity is Severity.INFO else Confidence.LIKELY,
                detail="Measured with pinned memory, while no other rank of the node copied.",
                severity=severity,
            )


def _expected_from(copy: comparison.Compared) -> str:
    if copy.others:
        return f"median of the other {copy.others} of the model with such a link"
    load = copy.gpu.fact.load
    return f"what PCIe {load.pcie_generation} x{load.pcie_width} carries, read during the copies"


def _judged(recording: Recording) -> list[Measured]:
    elsewhere = reduced_beside_peers(recording)
    return [gpu for gpu in judged(recording) if rank_of(gpu) not in elsewhere and not gpu.fact.load.confidential]


def _model_and_link(gpu: Measured) -> Hashable:
    return model(gpu), gpu.fact.load.pcie_generation, gpu.fact.load.pcie_width


def _beside_peers(recording: Recording) -> Iterator[comparison.Compared]:
    for metric in (INTO, BACK):
        for group in comparison.groups(_judged(recording), metric, _model_and_link):
            slow = [compared for compared in group if compared.is_below(gpu_speed.HOST_COPY_SLOWER_SHARE)]
            if len(group) >= gpu_speed.FEWEST_TO_JUDGE and 2 * len(slow) < len(group):
                yield from slow


def _beside_link(recording: Recording, named: Collection[int]) -> tuple[Slow, Slow]:
    """Return GPUs below a third of their link: GPUs with better peers or no peers, and groups that are all slow."""
    models = grouped((_model_and_link(gpu), gpu) for gpu in _judged(recording))
    alone: Slow = []
    uniform: Slow = []
    for gpus in models.values():
        slow = []
        for gpu in gpus:
            link = _rate(gpu.fact.load)
            for metric in (INTO, BACK) if rank_of(gpu) not in named else ():
                rate = metric.of(gpu)
                if link and rate and rate.most < link * gpu_speed.HOST_COPY_LEAST_SHARE_OF_LINK:
                    slow.append(comparison.Compared(gpu, metric, rate, link, others=0))
        all_slow = len(gpus) > 1 and len({rank_of(copy.gpu) for copy in slow}) == len(gpus)
        (uniform if all_slow else alone).extend(slow)
    return alone, uniform
