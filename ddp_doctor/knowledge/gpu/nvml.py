"""The values that NVML returns, and their meaning for a training job."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor.knowledge.gpu.gpu_speed import SLOWDOWNS_UNDER_LOAD
from ddp_doctor.model.finding import Scope

NVML_API = "NVML API reference, nvmlReturn_t, https://docs.nvidia.com/deploy/nvml-api/"
MEMORY_ERRORS = (
    "NVIDIA GPU Memory Error Management, Error Recovery and Response Flags, "
    "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
)
XID_CATALOG = "NVIDIA Xid catalog, https://docs.nvidia.com/deploy/xid-errors/"
CLOCK_EVENTS_API = "NVML API reference, nvmlClocksEventReasons, https://docs.nvidia.com/deploy/nvml-api/"
PAGE_RETIREMENT = "NVIDIA Dynamic Page Retirement, https://docs.nvidia.com/deploy/dynamic-page-retirement/"
FABRIC_GUIDE = "NVIDIA Fabric Manager User Guide, https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"
FABRIC_API = "NVML API reference, nvmlGpuFabricInfo_v2_t, https://docs.nvidia.com/deploy/nvml-api/"
PERSISTENCE_GUIDE = "NVIDIA Driver Persistence, https://docs.nvidia.com/deploy/driver-persistence/"
MIG_GUIDE = "NVIDIA MIG User Guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"
CUDA_VARIABLES = (
    "CUDA Programming Guide, CUDA Environment Variables, "
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
)

#: GPUs whose memory the operating system manages as a NUMA node. It keeps pages there after a process has ended, and
#: its own pages under memory pressure, so "used" without a process means nothing (NVML API reference,
#: nvmlDeviceGetMemoryInfo).
OS_MANAGED_MEMORY = ("GH200", "GB200", "GB300")

#: Models on a board with NVSwitch or a full NVLink mesh, never with bridges: SXM modules, including names without a
#: form factor ("NVIDIA H200", but not "NVIDIA H200 NVL").
_ON_A_BOARD = re.compile(r"(?!.*(?:PCIe|NVL\b)).*\b(?:SXM\d?|HBM3e?|H20|H200|H800|G?B[23]00)\b")


def is_on_a_board(model: str | None) -> bool:
    """Return True if the model has NVLinks without a bridge. A GPU without any is then at fault."""
    return _ON_A_BOARD.match(model or "") is not None


#: Start of the name of CUDA's Multi-Process Service, which holds a GPU for its clients ("comm" is cut at 15).
MPS_SERVER = "nvidia-cuda-mps"

#: Clocks event reasons that slow a job below the set clocks. The first two come from the hardware and cut the core
#: clock to half or less (nvml.h). hw_slowdown is omitted, because NVML also raises it while clocks change. With
#: sw_thermal_slowdown the driver stays below the maximum operating temperature.
SLOWDOWNS = {name: words for name, words in SLOWDOWNS_UNDER_LOAD.items() if name != "hw_slowdown"}

#: NVML's return values if one GPU does not answer at all.
GPU_ERRORS = {
    "gpu_is_lost": "lost (it fell off the bus or does not respond)",
    "reset_required": "the driver needs it to be reset before it can be used",
}

#: Incomplete states of a GPU's registration with the fabric (nvml.h, nvmlGpuFabricState_t).
FABRIC_STATES = {
    "not_started": "its registration with the fabric manager has not started",
    "in_progress": "its registration with the fabric manager is in progress",
}

#: Faults in a fabric health mask (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*).
FABRIC_FAULTS = {
    "degraded_bandwidth": "its bandwidth is degraded",
    "route_recovery": "a route is being recovered",
    "route_unhealthy": "a route is unhealthy",
    "access_timeout_recovery": "it recovers from accesses that timed out",
    "incorrect_sysguid": "its system GUID is wrong",
    "incorrect_chassis_serial_number": "its chassis serial number is wrong",
    "no_partition": "it is in no partition",
    "insufficient_nvlinks": "too few of its NVLinks are up",
    "incompatible_gpu_firmware": "its firmware does not fit",
    "invalid_location": "its location is not valid",
    "gpu_state_invalid": "its state is not valid",
}

#: Values of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, to follow "the driver asks for".
RECOVERY_ACTIONS: Mapping[str, str] = {
    "gpu_reset": "a reset of the GPU",
    "node_reboot": "a reboot of the node",
    "drain_p2p": "an end of its P2P traffic",
    "drain_and_reset": "no new work and then a reset",
    "recover_imex_domain": "a recovery of the IMEX domain",
    "bus_reset": "a reset of the bus",
    "system_reboot": "a reboot of the system",
}
#: Actions that leave the GPU usable within its node.
MILD_RECOVERY_ACTIONS = ("recover_imex_domain",)


@dataclass(frozen=True)
class Fault:
    """A failure of NVML itself: its meaning and its fix."""

    meaning: str  # ends the sentence "On node0 …"
    repair: str
    commands: tuple[str, ...] = ()
    scope: Scope = "node"


#: By NVML's return value (nvml.h, nvmlReturn_t), plus failures of the helper process itself.
NVML_FAULTS = {
    "library_not_found": Fault(
        "the driver library libnvidia-ml.so.1 is missing",
        "Install or reinstall the NVIDIA driver",
        ("ldconfig -p | grep libnvidia-ml", "cat /proc/driver/nvidia/version"),
    ),
    "library_not_found_in_container": Fault(
        "the driver library libnvidia-ml.so.1 is missing in this container",
        "Start the container with the driver: docker run --gpus all, apptainer --nv, or the pod's GPU resource",
        ("ldconfig -p | grep libnvidia-ml",),
        "job",
    ),
    "driver_not_loaded": Fault(
        "the NVIDIA kernel driver is not loaded",
        "Load the kernel driver; rebuild it for the running kernel if that fails",
        ("sudo modprobe nvidia", "sudo dmesg | grep -i nvrm", "dkms status"),
    ),
    "lib_rm_version_mismatch": Fault(
        "driver library and loaded kernel module have different versions",
        "Reboot the node or reload the kernel modules, which ends all GPU jobs of the node;"
        " the driver was updated while the old module was loaded",
        ("cat /proc/driver/nvidia/version", "sudo reboot"),
    ),
    "no_permission": Fault(
        "this user cannot open the NVIDIA devices",
        "Give the user access to /dev/nvidia*, or run inside the job's allocation",
        ("ls -l /dev/nvidia*", "id"),
    ),
    "gpu_is_lost": Fault(
        "a GPU fell off the bus, and the driver responds for no GPU",
        "Reboot the node; look for Xid 79, and inspect power, cooling and the slot if the fault returns",
        ("sudo dmesg | grep -i xid", "sudo reboot"),
    ),
    "irq_issue": Fault(
        "the kernel reports interrupt problems of a GPU",
        "Reboot the node; send the kernel log to the vendor if the fault returns",
        ("sudo dmesg | grep -i -e nvrm -e irq",),
    ),
    "crashed": Fault(
        "the driver library crashes every process that calls it",
        "Look for mixed driver versions; library and kernel module must come from one installation",
        ("ldconfig -p | grep libnvidia-ml", "cat /proc/driver/nvidia/version", "sudo dmesg | tail"),
    ),
}
UNKNOWN_FAULT = Fault(
    "the NVIDIA driver does not work",
    "Read the kernel driver's messages; a reboot often helps, and a fault that returns is hardware",
    ("nvidia-smi", "sudo dmesg | grep -i nvrm"),
)


def fault_of(code: str, *, in_container: bool) -> Fault:
    """Return the row for NVML's return value ``code``."""
    if in_container and code == "library_not_found":
        code = "library_not_found_in_container"
    return NVML_FAULTS.get(code, UNKNOWN_FAULT)
