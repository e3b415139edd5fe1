"""What mends GPUs between which the driver allows no P2P, with the price of each.

Sources: NVIDIA/nccl src/graph/paths.cc (ncclTopoCheckP2p, NCCL_IGNORE_DISABLED_P2P), src/transport/shm.cc;
NVIDIA fabric manager user guide (a GPU whose NVLinks the fabric manager has not set up reports no P2P).
"""

from ddp_doctor.model.finding import NOTHING_TO_UNDO, Proof, Remedy, Setting
from ddp_doctor.remedies import nccl_settings

REPAIR_FABRIC = Remedy(
    summary="Find out why NVLink carries no P2P: fabric manager, a link that is down, MIG, or a GPU to reset",
    commands=(
        "systemctl status nvidia-fabricmanager",
        "nvidia-smi nvlink -s",
        "nvidia-smi -q -d MIG",
        "sudo dmesg | grep -i xid   # 74 and 144-150 are NVLink errors",
    ),
    scope="node",
    cost="restarting the fabric manager or resetting GPUs needs the node drained",
    undo=NOTHING_TO_UNDO,
    proof=Proof(reason="it takes an administrator"),
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

LOOK_AT_MODULE_SETTINGS = Remedy(
    summary="If nobody meant to turn P2P off, take the setting of the kernel module away",
    commands=("cat /proc/driver/nvidia/params", "grep -r nvidia /etc/modprobe.d/"),
    scope="node",
    cost="an administrator's work, and loading the module again",
    undo="put the setting back",
    proof=Proof(reason="it takes an administrator"),
    references=(nccl_settings.TROUBLE,),
)

LOOK_AT_BOARD = Remedy(
    summary="Compare the slots, the BIOS and the IOMMU of these GPUs with those between which P2P works",
    commands=("lspci -tv", "cat /proc/cmdline", "nvidia-smi topo -p2p r", "nvidia-smi topo -p2p w"),
    scope="node",
    cost="an administrator's work in the BIOS or at the slots",
    undo=NOTHING_TO_UNDO,
    proof=Proof(reason="it takes an administrator"),
    references=(nccl_settings.TROUBLE,),
)
