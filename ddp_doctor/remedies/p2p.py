"""What mends GPUs that cannot talk directly, with the price of each.

Sources: NCCL user guide (troubleshooting: PCI Access Control Services; environment variables
NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_IB_HCA, NCCL_IB_GID_INDEX) and reports in which a user confirmed
the cure: NVIDIA/nccl issues 667 and 2079 (ACS, IOMMU), pytorch/pytorch issue 79299 (IOMMU).
"""

from ddp_doctor.model.finding import Proof, Remedy, Setting
from ddp_doctor.phrases import nccl_settings
from ddp_doctor.remedies.kinds import by_administrator, remedy

REPAIR_PATH = remedy(
    "Repair the path: turn off ACS on the PCIe bridges, or the IOMMU, and measure again",
    "sudo lspci -vvv | grep ACSCtl   # SrcValid+ means that ACS is on",
    "cat /proc/cmdline",
    cost="an administrator's work in the BIOS or on the kernel's command line, and a reboot",
    undo="turn ACS or the IOMMU on again; virtual machines need both",
    untried="it takes an administrator and a reboot",
    references=(nccl_settings.TROUBLE,),
)

DISABLE_P2P = nccl_settings.remedy(
    "Send the traffic through host memory until the path is repaired",
    Setting(name="NCCL_P2P_DISABLE", value="1", why="NCCL then copies through shared memory"),
    cost=(
        "a proof and a stop-gap, not a cure: all GPUs of the node give up P2P, NVLink too, and what went"
        " directly now crosses host memory twice"
    ),
    conflicts=("NCCL_P2P_LEVEL",),
)

UNSET_LEVEL = nccl_settings.remedy(
    "Give NCCL its own limit back, if nobody needs the wider one",
    Setting(name="NCCL_P2P_LEVEL", action="unset", why="it lets P2P reach farther than by default"),
    cost="GPUs beyond the limit talk through host memory, as NCCL intends",
    undo="set NCCL_P2P_LEVEL to its old value",
    conflicts=("NCCL_P2P_DISABLE",),
)


def keep_near_p2p(limit: str) -> Remedy:
    """Take P2P from far GPUs alone."""
    return nccl_settings.remedy(
        f"Leave P2P to near GPUs, up to {limit}, as NCCL does by itself since 2.23",
        Setting(name="NCCL_P2P_LEVEL", value=limit, why="none of the pairs that stall is so near"),
        cost="the GPUs beyond talk through host memory; the near ones keep P2P, NVLink too",
    )


_ASK_FOR_INDEX = (
    "Whether NCCL_IB_GID_INDEX must be set as well needs show_gids or sysfs; NCCL 2.21 and newer find the"
    " RoCE v2 entry themselves"
)


def use_hca(
    devices: tuple[str, ...], others: tuple[str, ...], why: str, gid_index: str | None = None
) -> Remedy:
    """Point NCCL at these RDMA devices; the GID index is only named, never guessed.

    ``gid_index`` says in words what is known of it; where nothing is, the commands that tell are given.
    Names in NCCL_IB_HCA are prefixes unless = stands before them, so it does where ``others`` would match.
    """
    exact = any(other.startswith(name) for name in devices for other in others)
    value = ("=" if exact else "") + ",".join(devices)
    return Remedy(
        summary=(
            f"Only for jobs of several nodes: {', '.join(devices)} is the candidate for NCCL_IB_HCA."
            f" {gid_index or _ASK_FOR_INDEX}"
        ),
        settings=(Setting(name="NCCL_IB_HCA", value=value, why=why),),
        commands=()
        if gid_index
        else (
            "show_gids",
            *(f"grep . /sys/class/infiniband/{name}/ports/1/gid_attrs/types/*" for name in devices),
        ),
        cost="other NICs stay idle; nothing changes within one node",
        undo="unset NCCL_IB_HCA",
        proof=Proof(reason="it takes several nodes to try"),
        references=(nccl_settings.entry("NCCL_IB_HCA"), nccl_settings.entry("NCCL_IB_GID_INDEX")),
    )


def name_hca(candidate: Remedy) -> Remedy:
    """The same as a line to paste, where it mends another thing than the finding's own fault: not to be tried."""
    lines = [f"export {setting.name}={setting.value}" for setting in candidate.settings]
    return candidate.model_copy(update={"settings": (), "commands": (*lines, *candidate.commands)})


def look_at_nvlinks(gpus: tuple[str, ...]) -> Remedy:
    """Find out which link is down, and why."""
    numbers = [gpu.removeprefix("GPU") for gpu in gpus]
    return by_administrator(
        f"Look at the links of {' and '.join(gpus)}; reset or reseat what is down",
        *(f"nvidia-smi nvlink -s -i {number}" for number in numbers),
        *(f"nvidia-smi nvlink -e -i {number}" for number in numbers),
        "sudo dmesg | grep -i xid   # 74 and 144-150 are NVLink errors",
        cost="a reset needs the node drained; a bridge or board needs hands",
        references=("https://docs.nvidia.com/deploy/xid-errors/",),
    )
