"""DD803: a GPU whose PCIe link is reduced while it is in use."""

from collections.abc import Hashable, Iterator, Sequence
from statistics import median_high

from ddp_doctor.checks.collectives.gpu_speed import wording
from ddp_doctor.checks.collectives.gpu_speed.comparable import (
    BACK,
    INTO,
    Measured,
    beside_others,
    model,
    rank_of,
)
from ddp_doctor.facts.collectives import GpuLoad, GpuSpeedFact
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.gpus import LINES_OF_EVIDENCE
from ddp_doctor.wording.ranks import capital, rank_at, ranks_at

#: Of a model's GPUs no more than this share is a fault; more of them is how the machines are built.
_FEW = 0.25


@rule("DD803", "gpu-pcie-link-reduced", Severity.WARNING, GpuSpeedFact)
def link_reduced(recording: Recording) -> Iterator[Draft]:
    """A GPU whose PCIe link is narrower or slower than the GPU allows, while copies run over it.

    What it finds
        PCIe generation or width below the highest that the driver gives for the GPU, read during the copies:
        an idle link saves power and says nothing. A warning where at least three peers of the model have a
        better link and only few have not; an error where the copies too are three times slower; else
        information: slots of workstations are wired with fewer lanes by design.

    Why it matters
        All data of a rank goes through it, and gradients too where the GPUs have no NVLink.

    Remedy
        Look at slot, riser and cable; reseat the GPU.

    References
        nvidia-smi, pcie.link.gen.current: may be reduced when the GPU is not in use;
        docs/explanation/measurements.md
    """
    reduced = [seen for seen in _with_links(recording) if _is_reduced(seen.fact.load)]
    few = reduced_beside_peers(recording)
    slow = _much_slower(recording) & few
    for severity, those in (
        (Severity.ERROR, [seen for seen in reduced if rank_of(seen) in slow]),
        (Severity.WARNING, [seen for seen in reduced if rank_of(seen) in few - slow]),
        (Severity.INFO, [seen for seen in reduced if rank_of(seen) not in few]),
    ):
        if those:
            yield _draft(recording, those, severity)


def reduced_beside_peers(recording: Recording) -> frozenset[int]:
    """The few ranks whose GPU has a reduced link where its peers have a better one."""
    return recording.once("reduced PCIe links", lambda: frozenset(_few_reduced(recording)))


def _few_reduced(recording: Recording) -> Iterator[int]:
    models: dict[Hashable, list[Measured]] = {}
    for seen in _with_links(recording):
        models.setdefault(model(seen), []).append(seen)
    for gpus in models.values():
        typical = median_high([_rate(seen.fact.load) for seen in gpus])
        worse = [seen for seen in gpus if _is_reduced(seen.fact.load) and _rate(seen.fact.load) < typical]
        better = sum(_rate(seen.fact.load) >= typical for seen in gpus)
        if better >= gpu_speed.FEWEST_TO_JUDGE and len(worse) <= _FEW * len(gpus):
            yield from map(rank_of, worse)


def _with_links(recording: Recording) -> list[Measured]:
    """The GPUs whose link was in use when it was looked at."""
    return [
        seen
        for seen in recording.facts(GpuSpeedFact)
        if seen.fact.host_to_device_gb_per_s is not None and _rate(seen.fact.load) > 0
    ]


def _rate(load: GpuLoad) -> float:
    return gpu_speed.link_gb_per_s(load.pcie_generation, load.pcie_width) or 0.0


def _is_reduced(load: GpuLoad) -> bool:
    generation, width = load.pcie_generation_max, load.pcie_width_max
    return (generation is not None and (load.pcie_generation or 0) < generation) or (
        width is not None and (load.pcie_width or 0) < width
    )


def _much_slower(recording: Recording) -> frozenset[int]:
    """The ranks that copy three times more slowly than their peers, from the host or to it."""
    compared = [one for metric in (INTO, BACK) for group in beside_others(recording, metric) for one in group]
    return frozenset(rank_of(one.seen) for one in compared if one.factor >= gpu_speed.MUCH_SLOWER)


def _draft(recording: Recording, gpus: Sequence[Measured], severity: Severity) -> Draft:
    is_fault = severity is not Severity.INFO
    links = " and ".join(sorted({_now(seen.fact.load) for seen in gpus}))
    most = " and ".join(sorted({_most(seen.fact.load) for seen in gpus}))
    whose = "its peers have more" if is_fault else "slots may be wired so"
    return finding(
        (wording.gpu_culprit(recording, rank_of(seen), seen.fact.gpu_uuid) for seen in gpus),
        f"{capital(ranks_at(recording, map(rank_of, gpus)))}: PCIe link {links} where the GPU can do "
        f"{most}; {whose}",
        (_evidence(recording, seen) for seen in gpus[:LINES_OF_EVIDENCE]),
        wording.RESEAT,
        confidence=Confidence.LIKELY if is_fault else Confidence.POSSIBLE,
        detail="Read while copies ran over the link, so it is not reduced to save power.",
        severity=severity,
    )


def _now(load: GpuLoad) -> str:
    return f"{load.pcie_generation} x{load.pcie_width}"


def _most(load: GpuLoad) -> str:
    return f"{load.pcie_generation_max or load.pcie_generation} x{load.pcie_width_max or load.pcie_width}"


def _evidence(recording: Recording, seen: Measured) -> Evidence:
    into, back = seen.fact.host_to_device_gb_per_s, seen.fact.device_to_host_gb_per_s
    rates = [f"{rate.median:.1f} GB/s {way} it" for rate, way in ((into, "to"), (back, "from")) if rate]
    return Evidence(
        text=f"{rank_at(recording, rank_of(seen))}: PCIe {_now(seen.fact.load)} at most, copies {', '.join(rates)}",
        expected_from=f"the GPU's own highest, {_most(seen.fact.load)}",
    )
