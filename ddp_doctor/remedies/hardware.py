"""Fixes for hardware and hosts: GPU faults, memory for NCCL, PCIe paths that are redirected or translated."""

import math
from collections.abc import Sequence
from functools import partial

from ddp_doctor.facts.node.pcie import PcieFact
from ddp_doctor.knowledge.gpu import gpudirect
from ddp_doctor.knowledge.gpu.nvml import CLOCK_EVENTS_API, PERSISTENCE_GUIDE, XID_CATALOG
from ddp_doctor.knowledge.thresholds import GIB, LARGE_SHM_BYTES, NCCL_SHM_PER_RANK_BYTES, RECOMMENDED_SHM_BYTES
from ddp_doctor.model.finding import Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.kinds import by_administrator, by_operator, remedy
from ddp_doctor.wording.pcie import CUDA_IOMMU, NCCL_ACS, bare_metal, iommu_evidence, redirecting_above_gpus

COOL_DOWN = by_operator(
    "Inspect cooling and power: air flow, fans, heat sinks, power supplies and their cables",
    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
    cost="node unavailable until fixed",
    references=(CLOCK_EVENTS_API,),
)
FIND_GPU = by_operator(
    "Search the kernel log for the missing GPU (RmInitAdapter failed, Xid 79, PCIe errors),"
    " then reboot or drain the node",
    "sudo dmesg | grep -i -e nvrm -e xid -e pcieport",
    "lspci -nn -d 10de:",
    cost="node unavailable until fixed",
    references=(XID_CATALOG,),
)
REBOOT = by_operator(
    "Find the first Xid and the processes in state D, then reboot the node",
    "sudo dmesg | grep -i -e xid -e nvrm",
    "ps -eo pid,stat,wchan:32,cmd | awk '$2 ~ /^D/'",
    cost="ends all jobs of the node",
    references=(XID_CATALOG, PERSISTENCE_GUIDE),
)
REBOOT_NODE = by_operator(
    "Drain and reboot the node; inspect power, cooling and the slot if the fault returns",
    "sudo reboot",
    cost="ends all jobs of the node",
    references=(XID_CATALOG,),
)
LOAD_PEERMEM = by_administrator(
    "Load nvidia_peermem, or install the open NVIDIA kernel modules; a container must see the module",
    "sudo modprobe nvidia_peermem",
    "cat /sys/module/nvidia_peermem/version",
    "echo nvidia_peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf   # at each boot",
    cost="administrator access; a kernel or MLNX_OFED with the peer memory interface",
    undo="sudo modprobe -r nvidia_peermem; sudo rm /etc/modules-load.d/nvidia-peermem.conf",
    references=(gpudirect.GUIDE,),
)


NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


UNCHANGED = "ddp-doctor does not change limits of the host"
_of_a_limit = partial(remedy, untried=UNCHANGED, references=(NCCL_GUIDE,))


def shared_memory(found_bytes: int, ranks: int, *, in_container: bool) -> Remedy:
    """Return a fix that enlarges /dev/shm: to twice its size, and to what NCCL's guide and these ranks need.

    A large /dev/shm that is full is not too small: unused segments must be deleted.
    """
    if found_bytes >= LARGE_SHM_BYTES:
        return _of_a_limit(
            "Delete unused segments in /dev/shm",
            "ls -l /dev/shm",
            "fuser -v /dev/shm/*",
            cost="segments still in use must stay",
        )
    wanted = max(RECOMMENDED_SHM_BYTES, 2 * found_bytes, ranks * NCCL_SHM_PER_RANK_BYTES)
    gib = math.ceil(wanted / GIB)
    if in_container:
        return _of_a_limit(
            f"Start the container with --shm-size={gib}g or --ipc=host; in Kubernetes, mount"
            f" an emptyDir with medium: Memory and sizeLimit: {gib}Gi at /dev/shm",
            f"docker run --shm-size={gib}g IMAGE",
            "docker run --ipc=host IMAGE",
            cost="the memory that is used; --ipc=host shares the host's segments",
            undo="start without the option",
            container=(f"--shm-size={gib}g",),
        )
    return _of_a_limit(
        f"Delete unused segments, or enlarge /dev/shm to {gib} GiB",
        "ls -l /dev/shm",
        f"mount -o remount,size={gib}g /dev/shm",
        cost="the memory that is used",
        undo=f"mount -o remount,size={found_bytes} /dev/shm",
    )


def mount_shared_memory(*, in_container: bool) -> Remedy:
    """Return a fix that mounts /dev/shm if it is missing or not writable."""
    if in_container:
        return shared_memory(0, 1, in_container=True)
    return _of_a_limit(
        "Mount a tmpfs at /dev/shm that every user can write to",
        "sudo mkdir -p /dev/shm",
        "sudo mount -t tmpfs -o rw,mode=1777 tmpfs /dev/shm",
        cost="the memory that is used",
        undo="sudo umount /dev/shm",
    )


def locked_memory(launcher: str, *, in_container: bool) -> Remedy:
    """Return a fix that sets unlimited locked memory at the origin of this process's limit."""
    if in_container:
        summary, command = ("Start the container with --ulimit memlock=-1", "docker run --ulimit memlock=-1 IMAGE")
    elif launcher == "slurm":
        summary = "Set PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and LimitMEMLOCK=infinity in slurmd.service"
        command = "systemctl edit slurmd"
    else:
        summary = 'Add "* - memlock unlimited" to /etc/security/limits.d and log in again'
        command = "ulimit -l unlimited"
    return _of_a_limit(
        summary,
        command,
        cost="processes may pin all memory",
        undo="restore the previous limit",
        container=("--ulimit=memlock=-1",) if in_container else (),
    )


#: Maximum number of bridges in the commands.
MOST_COMMANDS = 16


def redirect_off(fact: PcieFact, bridges: Sequence[str]) -> Remedy:
    """Return a fix that turns off redirection on exactly these bridges; its undo restores the current values."""
    shown = bridges[:MOST_COMMANDS]
    controls = {device.bus_id: device.acs_control or 0 for device in fact.devices}
    return by_administrator(
        "Turn off ACS on these PCIe bridges, permanently in the BIOS or at each boot with setpci",
        *(f"sudo setpci -s {bus} ECAP_ACS+0x6.w=0000" for bus in shown),
        cost="no isolation of devices below one switch; unsuitable if virtual machines use the GPUs",
        undo="; ".join(f"sudo setpci -s {bus} ECAP_ACS+0x6.w={controls[bus]:04x}" for bus in shown[:4])
        + (" and so on, or reboot" if len(shown) > 4 else ", or reboot"),
        references=(NCCL_ACS,),
    )


PASS_THROUGH = by_administrator(
    "Set the IOMMU to pass-through mode (kernel option iommu=pt), or turn it off in the BIOS",
    "cat /proc/cmdline",
    "sudo grubby --update-kernel=ALL --args=iommu=pt   # or edit /etc/default/grub",
    cost="a reboot; devices of the host can then reach all of its memory",
    undo="sudo grubby --update-kernel=ALL --remove-args=iommu=pt, then reboot",
    references=(CUDA_IOMMU,),
)


def exact_repairs(recording: Recording, node: int) -> tuple[Remedy, ...]:
    """Return fixes for the redirection and translation that this node has."""
    found = []
    for fact in bare_metal(recording, node):
        bridges = redirecting_above_gpus(fact)
        found += [redirect_off(fact, bridges)] if bridges else []
        found += [PASS_THROUGH] if iommu_evidence(fact) else []
    return tuple(found)
