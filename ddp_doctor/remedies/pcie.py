"""What mends PCIe paths on which direct copies are redirected or translated."""

from collections.abc import Sequence

from ddp_doctor.facts.node.pcie import PcieFact
from ddp_doctor.model.finding import Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.wording.pcie import CUDA_IOMMU, NCCL_ACS, bare_metal, iommu_evidence, redirecting_above_gpus

#: Of more bridges than this the commands show the first.
MOST_COMMANDS = 16


def redirect_off(fact: PcieFact, bridges: Sequence[str]) -> Remedy:
    """Turn redirection off on exactly these bridges; undone by writing back what is there now."""
    shown = bridges[:MOST_COMMANDS]
    controls = {device.bus_id: device.acs_control or 0 for device in fact.devices}
    return by_administrator(
        "Turn off ACS on these PCIe bridges; in the BIOS for good, or at each boot with setpci",
        *(f"sudo setpci -s {bus} ECAP_ACS+0x6.w=0000" for bus in shown),
        cost="devices below one switch are no longer kept apart: not where GPUs are given to virtual machines",
        undo="; ".join(f"sudo setpci -s {bus} ECAP_ACS+0x6.w={controls[bus]:04x}" for bus in shown[:4])
        + (" and so on, or reboot" if len(shown) > 4 else ", or reboot"),
        references=(NCCL_ACS,),
    )


PASS_THROUGH = by_administrator(
    "Put the IOMMU into pass-through mode, or turn it off in the BIOS: iommu=pt on the kernel's command line",
    "cat /proc/cmdline",
    "sudo grubby --update-kernel=ALL --args=iommu=pt   # or edit /etc/default/grub",
    cost="a reboot; devices of the host can then reach all of its memory",
    undo="sudo grubby --update-kernel=ALL --remove-args=iommu=pt, and reboot",
    references=(CUDA_IOMMU,),
)


def exact_repairs(recording: Recording, node: int) -> tuple[Remedy, ...]:
    """What undoes it on this very node."""
    found = []
    for fact in bare_metal(recording, node):
        bridges = redirecting_above_gpus(fact)
        found += [redirect_off(fact, bridges)] if bridges else []
        found += [PASS_THROUGH] if iommu_evidence(fact) else []
    return tuple(found)
