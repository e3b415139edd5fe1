"""What mends GPUs between which the driver allows no P2P, with the price of each.

Sources: NVIDIA/nccl src/graph/paths.cc (ncclTopoCheckP2p, NCCL_IGNORE_DISABLED_P2P), src/transport/shm.cc;
NVIDIA fabric manager user guide (a GPU whose NVLinks the fabric manager has not set up reports no P2P).
"""

from ddp_doctor.model.finding import Setting
from ddp_doctor.remedies import nccl_settings
from ddp_doctor.remedies.kinds import by_administrator

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
