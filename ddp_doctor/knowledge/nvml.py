"""What NVML's words mean for a training job, and what mends them."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor.model.finding import NOTHING_TO_UNDO, Proof, Remedy, Scope

NVML_API = "NVML API reference, nvmlReturn_t, https://docs.nvidia.com/deploy/nvml-api/"
MEMORY_ERRORS = (
    "NVIDIA GPU Memory Error Management, Error Recovery and Response Flags, "
    "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
)
XID_CATALOG = "NVIDIA Xid catalog, https://docs.nvidia.com/deploy/xid-errors/"
CLOCK_EVENTS_API = "NVML API reference, nvmlClocksEventReasons, https://docs.nvidia.com/deploy/nvml-api/"
PAGE_RETIREMENT = "NVIDIA Dynamic Page Retirement, https://docs.nvidia.com/deploy/dynamic-page-retirement/"
FABRIC_GUIDE = (
    "NVIDIA Fabric Manager User Guide, https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"
)
FABRIC_API = "NVML API reference, nvmlGpuFabricInfo_v2_t, https://docs.nvidia.com/deploy/nvml-api/"
PERSISTENCE_GUIDE = "NVIDIA Driver Persistence, https://docs.nvidia.com/deploy/driver-persistence/"
MIG_GUIDE = "NVIDIA MIG User Guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"
CUDA_VARIABLES = (
    "CUDA Programming Guide, CUDA Environment Variables, "
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
)

#: GPUs whose memory the operating system manages as a NUMA node: it keeps pages there after a process
#: ended, and its own under memory pressure, so "used" without a process means nothing
#: (NVML API reference, nvmlDeviceGetMemoryInfo).
OS_MANAGED_MEMORY = ("GH200", "GB200", "GB300")

#: How the process of CUDA's Multi-Process Service begins that holds a GPU in its clients' name ("comm" is cut at 15).
MPS_SERVER = "nvidia-cuda-mps"

#: Clocks event reasons that slow a job down beyond what was set. The first two are the hardware's own and
#: cut the core clock to half or less (nvml.h). hw_slowdown alone is left out: NVML also raises it while
#: clocks change. sw_thermal_slowdown is the driver staying below the maximum operating temperature.
SLOWDOWNS = {
    "hw_thermal_slowdown": "too hot, the hardware halves the clocks or worse",
    "hw_power_brake_slowdown": "the power supply pulls the brake, the clocks are halved or worse",
    "sw_thermal_slowdown": "warm, the driver lowers the clocks",
}

#: NVML's return values where one GPU as a whole does not answer.
GPU_ERRORS = {
    "gpu_is_lost": "lost, it has fallen off the bus or does not answer",
    "reset_required": "the driver needs it to be reset before it can be used",
}

#: What the fabric's registration of a GPU is waiting for (nvml.h, nvmlGpuFabricState_t).
FABRIC_STATES = {
    "not_started": "its registration with the fabric manager has not started",
    "in_progress": "its registration with the fabric manager is in progress",
}

#: What a fabric health mask can complain of (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*).
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

#: Answers to NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, after "the driver asks for".
RECOVERY_ACTIONS: Mapping[str, str] = {
    "gpu_reset": "a reset of the GPU",
    "node_reboot": "a reboot of the node",
    "drain_p2p": "an end of its P2P traffic",
    "drain_and_reset": "no new work and then a reset",
    "recover_imex_domain": "a recovery of the IMEX domain",
    "bus_reset": "a reset of the bus",
    "system_reboot": "a reboot of the system",
}
#: Those that leave the GPU usable within its node.
MILD_RECOVERY_ACTIONS = ("recover_imex_domain",)


@dataclass(frozen=True)
class Fault:
    """One way in which NVML as a whole fails: what it means, and what mends it."""

    meaning: str  # ends the sentence "On node0 …"
    mend: str
    commands: tuple[str, ...] = ()
    scope: Scope = "node"


_RELOAD = "A reboot, or unloading and loading the kernel modules, which ends all GPU jobs of the node."

#: By NVML's return value (nvml.h, nvmlReturn_t), plus what the helper process itself can meet.
NVML_FAULTS = {
    "library_not_found": Fault(
        "the NVIDIA driver's library libnvidia-ml.so.1 is not found",
        "Install the NVIDIA driver, or mend its installation.",
        ("ldconfig -p | grep libnvidia-ml", "cat /proc/driver/nvidia/version"),
    ),
    "library_not_found_in_container": Fault(
        "the GPUs were granted, but the driver's library libnvidia-ml.so.1 is not in this container",
        "Start the container with the driver: docker run --gpus all, apptainer --nv, or the GPU resource of "
        "the pod.",
        ("ldconfig -p | grep libnvidia-ml",),
        "job",
    ),
    "driver_not_loaded": Fault(
        "the NVIDIA kernel driver is not loaded",
        "Load the kernel driver; where that fails, its build for the running kernel is missing.",
        ("sudo modprobe nvidia", "sudo dmesg | grep -i nvrm", "dkms status"),
    ),
    "lib_rm_version_mismatch": Fault(
        "the driver's library and the loaded kernel module are of different versions",
        f"The driver was updated while the old module stays loaded. {_RELOAD}",
        ("cat /proc/driver/nvidia/version", "sudo reboot"),
    ),
    "no_permission": Fault(
        "this user may not open the NVIDIA devices",
        "Give the user access to /dev/nvidia*, or run inside the job's allocation.",
        ("ls -l /dev/nvidia*", "id"),
    ),
    "gpu_is_lost": Fault(
        "a GPU has fallen off the bus, and the driver answers for none",
        "Reboot the node; look for Xid 79, and have power, cooling and the slot inspected if it returns.",
        ("sudo dmesg | grep -i xid", "sudo reboot"),
    ),
    "irq_issue": Fault(
        "the kernel finds interrupt trouble with a GPU",
        "Reboot the node; if it returns, hand the kernel log to the vendor.",
        ("sudo dmesg | grep -i -e nvrm -e irq",),
    ),
    "crashed": Fault(
        "the driver's library crashes whoever asks it",
        "Look for mixed driver versions: library and kernel module must come from one installation.",
        ("ldconfig -p | grep libnvidia-ml", "cat /proc/driver/nvidia/version", "sudo dmesg | tail"),
    ),
}
UNKNOWN_FAULT = Fault(
    "the NVIDIA driver does not work",
    "Look at what the kernel driver says; a reboot often mends it, a fault that returns is hardware.",
    ("nvidia-smi", "sudo dmesg | grep -i nvrm"),
)


def fault_of(code: str, *, in_container: bool) -> Fault:
    """The row for NVML's return value ``code``."""
    if in_container and code == "library_not_found":
        code = "library_not_found_in_container"
    return NVML_FAULTS.get(code, UNKNOWN_FAULT)


def remedy(
    summary: str,
    *commands: str,
    scope: Scope = "node",
    cost: str = "",
    undo: str = "nothing is changed",
    references: tuple[str, ...] = (),
) -> Remedy:
    """A remedy that a person carries out; the doctor cannot try it."""
    return Remedy(
        summary=summary,
        commands=commands,
        scope=scope,
        cost=cost,
        undo=undo,
        proof=Proof(reason="it takes an operator or another allocation; the doctor changes nothing"),
        references=references,
    )


RESET_GPU = remedy(
    "Drain the node, then reset the GPU; where it does not come back, reboot, and if the fault returns, "
    "have the GPU replaced.",
    "nvidia-smi -q -d ECC,ROW_REMAPPER",
    "sudo dmesg | grep -i xid",
    "sudo nvidia-smi --gpu-reset -i INDEX",
    cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
    undo=NOTHING_TO_UNDO,
    references=(MEMORY_ERRORS, XID_CATALOG),
)
FREE_MEMORY = remedy(
    "End what still runs there, or ask for other GPUs.",
    "nvidia-smi --query-compute-apps=pid,name,used_memory,gpu_uuid --format=csv",
    "sudo fuser -v /dev/nvidia*",
    cost="the processes found may be somebody's job",
)
FIND_HOLDER_ON_HOST = remedy(
    "Ask on the host who holds the memory: it may be another container's job, or left over from one.",
    "nvidia-smi --query-compute-apps=pid,name,used_memory,gpu_uuid --format=csv   # on the host",
    "sudo fuser -v /dev/nvidia*   # on the host",
    cost="the processes found may be somebody's job",
)
FREE_LEAKED_MEMORY = remedy(
    "Look for processes that hold the GPU's device files, as root, which alone sees those of others, and end "
    "them; where there are none, or they do not end, reset the GPU, or reboot.",
    "sudo fuser -v /dev/nvidia*",
    "ps -eo pid,ppid,user,stat,wchan:32,cmd | awk '$4 ~ /^[DZ]/'   # defunct (Z), or stuck in the kernel (D)",
    "sudo nvidia-smi --gpu-reset -i INDEX",
    cost="the processes found may be somebody's job; the reset ends every process on the GPU",
    undo=NOTHING_TO_UNDO,
)
DEFAULT_MODE = remedy(
    "Set the compute mode back to default, or end the process that holds the GPU.",
    "sudo nvidia-smi -i INDEX -c DEFAULT",
    cost="needs root; several processes may then share the GPU",
    undo="sudo nvidia-smi -i INDEX -c EXCLUSIVE_PROCESS (or PROHIBITED)",
)
COOL_DOWN = remedy(
    "Have cooling and power inspected: air flow, fans, heat sinks, power supplies and their cables.",
    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
    cost="the node is out of work meanwhile",
    references=(CLOCK_EVENTS_API,),
)
WHOLE_GPUS = remedy(
    "For DDP over several GPUs ask for whole GPUs; an operator can turn MIG mode off.",
    "sudo nvidia-smi -i INDEX -mig 0",
    scope="cluster",
    cost="needs root and an idle GPU; ends the slices",
    undo="sudo nvidia-smi -i INDEX -mig 1, and create the slices again",
    references=(MIG_GUIDE,),
)
SAME_MODEL = remedy(
    "Use GPUs of one model: name them in CUDA_VISIBLE_DEVICES by UUID, or ask the scheduler for one type.",
    "nvidia-smi --query-gpu=index,name,uuid --format=csv",
    scope="job",
    cost="fewer GPUs take part",
    undo="unset CUDA_VISIBLE_DEVICES",
    references=(CUDA_VARIABLES,),
)
FIND_GPU = remedy(
    "Look at the kernel log for the missing GPU (RmInitAdapter failed, Xid 79, PCIe errors); then reboot "
    "or take the node out.",
    "sudo dmesg | grep -i -e nvrm -e xid -e pcieport",
    "lspci -nn -d 10de:",
    cost="the node is out of work meanwhile",
    undo=NOTHING_TO_UNDO,
    references=(XID_CATALOG,),
)
REBOOT = remedy(
    "Reboot the node; before that, look for the Xid that began it and for processes in state D.",
    "sudo dmesg | grep -i -e xid -e nvrm",
    "ps -eo pid,stat,wchan:32,cmd | awk '$2 ~ /^D/'",
    cost="ends all jobs of the node",
    undo=NOTHING_TO_UNDO,
    references=(XID_CATALOG, PERSISTENCE_GUIDE),
)
REPLACE_GPU = remedy(
    "Drain the node and have the GPU looked at: what NVIDIA's field diagnostic confirms is replaced.",
    "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    "nvidia-bug-report.sh",
    cost="the node is out of work meanwhile",
    undo=NOTHING_TO_UNDO,
    references=(MEMORY_ERRORS,),
)
RESET_WHEN_IDLE = remedy(
    "Reset the GPU when the node is idle, or reboot: only then is the bad memory taken out of use.",
    "nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT",
    "sudo nvidia-smi --gpu-reset -i INDEX",
    cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
    undo=NOTHING_TO_UNDO,
    references=(MEMORY_ERRORS, PAGE_RETIREMENT),
)
WATCH_GPU = remedy(
    "Watch the counters; have the GPU looked at when they grow, or at the next maintenance.",
    "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    undo=NOTHING_TO_UNDO,
    references=(MEMORY_ERRORS, PAGE_RETIREMENT),
)
ECC_ALIKE = remedy(
    "Set ECC alike on all GPUs of one model, and reboot: on, where errors must not pass unseen.",
    "sudo nvidia-smi -i INDEX -e 1",
    cost="needs root and a reset or reboot; on cards without HBM ECC takes memory and bandwidth",
    undo="sudo nvidia-smi -i INDEX -e 0, and reset",
    references=("nvidia-smi manual, --ecc-config",),
)
FABRIC_MANAGER = remedy(
    "Start the fabric manager of exactly the driver's version, and read in its log why it has not taken the "
    "GPU in; where the node has just booted, wait a minute.",
    "systemctl status nvidia-fabricmanager",
    "nv-fabricmanager --version; cat /proc/driver/nvidia/version",
    "tail -n 50 /var/log/fabricmanager.log",
    "nvidia-smi -q | grep -A 3 Fabric",
    cost="needs root; restarting the fabric manager ends running jobs",
    undo=NOTHING_TO_UNDO,
    references=(FABRIC_GUIDE,),
)
LIMIT_POWER_ALIKE = remedy(
    "Set the power limit alike on all GPUs, or find out who lowered it: a script, a power budget, the BMC.",
    "nvidia-smi -q -d POWER",
    "sudo nvidia-smi -i INDEX -pl WATTS",
    cost="needs root; more power and heat, which the node must be able to carry",
    undo="sudo nvidia-smi -i INDEX -pl with the limit it had",
    references=("nvidia-smi manual, --power-limit",),
)
RESET_CLOCKS = remedy(
    "Reset the application clocks.",
    "nvidia-smi -q -d CLOCK",
    "sudo nvidia-smi -i INDEX -rac",
    cost="needs root; more power and heat",
    undo="sudo nvidia-smi -i INDEX -ac with the clocks it had",
    references=("nvidia-smi manual, --reset-applications-clocks",),
)
KEEP_DRIVER_LOADED = remedy(
    "Let nvidia-persistenced run, so that the driver keeps the GPUs initialised between processes.",
    "systemctl enable --now nvidia-persistenced",
    cost="needs root; the GPUs draw a little more power when idle",
    undo="systemctl disable --now nvidia-persistenced",
    references=(PERSISTENCE_GUIDE,),
)
SAME_FIRMWARE = remedy(
    "Nothing, as long as all is well; bring the GPUs to one VBIOS at the next maintenance.",
    "nvidia-smi --query-gpu=index,name,vbios_version,memory.total --format=csv",
    undo=NOTHING_TO_UNDO,
)
ONE_DRIVER = remedy(
    "Make library and kernel module one installation: reload the module or reboot after an update, and remove "
    "copies of the libraries from other places.",
    "cat /proc/driver/nvidia/version",
    "ldconfig -p | grep -e libcuda -e libnvidia-ml",
    cost="ends all GPU jobs of the node",
    undo=NOTHING_TO_UNDO,
    references=(NVML_API,),
)
INFOROM = remedy(
    "Have the GPU looked at by its vendor: what the InfoROM keeps, such as bad rows and error counts, is not safe.",
    "nvidia-smi -q | grep -i -A 6 inforom",
    "nvidia-bug-report.sh",
    undo=NOTHING_TO_UNDO,
    references=("DCGM, DCGM_FR_CORRUPT_INFOROM",),
)
