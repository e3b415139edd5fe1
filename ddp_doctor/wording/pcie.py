"""Texts about the PCIe tree in findings."""

from collections.abc import Sequence

from ddp_doctor.facts.node.pcie import PcieDevice, PcieFact
from ddp_doctor.model.finding import Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.pci import acs_words

NCCL_ACS = (
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs"
)
CUDA_IOMMU = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#iommu-on-linux"


def acs_evidence(fact: PcieFact, bridges: Sequence[str]) -> Evidence:
    """Return the evidence of access control on these bridges."""
    controls = (device.acs_control or 0 for device in fact.devices if device.bus_id in bridges)
    words = " or ".join(dict.fromkeys(acs_words(control) for control in controls))
    text = f"ACS redirects peer traffic on {', '.join(bridges)}: {words}"
    return Evidence(check="pcie", text=text, expected_from=NCCL_ACS)


def iommu_evidence(fact: PcieFact) -> Evidence | None:
    """Return the evidence that the IOMMU translates the addresses of GPUs, or None."""
    kinds = sorted({device.iommu or "" for device in fact.endpoints() if device.kind == "gpu" and translated(device)})
    if not kinds:
        return None
    options = " ".join(fact.iommu_options) or "no option for it on the kernel command line"
    text = f"the IOMMU translates the addresses of GPUs (group type {', '.join(kinds)}; {options})"
    return Evidence(check="pcie", text=text, expected_from=CUDA_IOMMU)


def translated(device: PcieDevice) -> bool:
    """Return True if the IOMMU is between this device and memory, and translates."""
    return (device.iommu or "").startswith("DMA")


def what_bends_the_path(recording: Recording, node: int) -> tuple[Evidence, ...]:
    """Return evidence from a node's kernel that direct copies of its GPUs may be redirected or translated."""
    found: list[Evidence | None] = []
    for fact in bare_metal(recording, node):
        bridges = redirecting_above_gpus(fact)
        found += [acs_evidence(fact, bridges) if bridges else None, iommu_evidence(fact)]
    return tuple(evidence for evidence in found if evidence is not None)


def bare_metal(recording: Recording, node: int) -> list[PcieFact]:
    """Return the facts about a node's PCIe tree, unless it is a virtual machine."""
    return [fact for fact in recording.at(PcieFact, node) if not fact.virtual]


def redirecting_above_gpus(fact: PcieFact) -> tuple[str, ...]:
    """Return the bridges above GPUs, including root ports, that redirect peer traffic."""
    above = {bus for device in fact.endpoints() if device.kind == "gpu" for bus in device.above}
    return fact.redirecting(tuple(above))
