"""What mends GPUs between which the driver allows no P2P, with the price of each.

Sources: NVIDIA/nccl src/graph/paths.cc (ncclTopoCheckP2p, NCCL_IGNORE_DISABLED_P2P), src/transport/shm.cc;
NVIDIA fabric manager user guide (a GPU whose NVLinks the fabric manager has not set up reports no P2P).
"""

from ddp_doctor.model.finding import Proof, Remedy, Setting
from ddp_doctor.remedies import nccl_settings
from ddp_doctor.remedies.kinds import by_administrator

UNSET_LEVEL = nccl_settings.remedy(
    "Give NCCL its own limit back, if nobody needs the wider one",
    Setting(name="NCCL_P2P_LEVEL", action="unset", why="it lets P2P reach farther than by default"),
    cost="GPUs beyond the limit talk through host memory, as NCCL intends",
    undo="set NCCL_P2P_LEVEL to its old value",
    conflicts=("NCCL_P2P_DISABLE",),
)
_ASK_FOR_INDEX = (
    "Whether NCCL_IB_GID_INDEX must be set as well needs show_gids or sysfs; NCCL 2.21 and newer find the"
    " RoCE v2 entry themselves"
)


REPAIR_FABRIC = by_administrator(
    "Find out why NVLink carries no P2P: fabric manager, a link that is down, MIG, or a GPU to reset",
    "systemctl status nvidia-fabricmanager",
    "nvidia-smi nvlink -s",
    "nvidia-smi -q -d MIG",
    "sudo dmesg | grep -i xid   # 74 and 144-150 are NVLink errors",
    cost="restarting the fabric manager or resetting GPUs needs the node drained",
    references=("https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",),
)

GO_WITHOUT_P2P = nccl_settings.remedy(
    "Let NCCL start without P2P between these GPUs until that is repaired",
    Setting(
        name="NCCL_IGNORE_DISABLED_P2P",
        value="1",
        why="NCCL then takes another path for these GPUs instead of failing",
    ),
    cost="these GPUs talk through host memory, several times slower than NVLink, and all wait for them",
)

LOOK_AT_MODULE_SETTINGS = by_administrator(
    "If nobody meant to turn P2P off, take the setting of the kernel module away",
    "cat /proc/driver/nvidia/params",
    "grep -r nvidia /etc/modprobe.d/",
    cost="an administrator's work, and loading the module again",
    undo="put the setting back",
    references=(nccl_settings.TROUBLE,),
)

LOOK_AT_BOARD = by_administrator(
    "Compare the slots, the BIOS and the IOMMU of these GPUs with those between which P2P works",
    "lspci -tv",
    "cat /proc/cmdline",
    "nvidia-smi topo -p2p r",
    "nvidia-smi topo -p2p w",
    cost="an administrator's work in the BIOS or at the slots",
    references=(nccl_settings.TROUBLE,),
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
