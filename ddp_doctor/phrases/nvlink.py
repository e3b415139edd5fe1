"""What mends ways of NCCL over NVLink that do not start, with the price of each.

Sources: NCCL user guide, environment variables NCCL_NVLS_ENABLE, NCCL_MNNVL_ENABLE and NCCL_CUMEM_ENABLE; NCCL
src/transport/nvls.cc and src/mnnvl.cc, whose messages name the first two; NVIDIA IMEX service guide.
"""

from ddp_doctor.model.finding import Setting
from ddp_doctor.phrases import nccl_settings
from ddp_doctor.remedies.kinds import by_administrator

WITHOUT_NVLS = nccl_settings.remedy(
    "Let NCCL do without NVLink SHARP",
    Setting(name="NCCL_NVLS_ENABLE", value="0", why="NCCL then needs no multicast of the NVSwitches"),
    cost="large all-reduces within the node get slower; NVLink stays in use",
)

REPAIR_IMEX = by_administrator(
    "See that the IMEX daemon is up on all nodes of the domain, and that the job has its channel",
    "nvidia-imex-ctl -N",
    "ls -l /dev/nvidia-caps-imex-channels",
    "systemctl status nvidia-imex",
    scope="cluster",
    cost="an administrator's work; starting the daemon anew ends jobs that use it",
    references=("https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/",),
)

WITHOUT_MNNVL = nccl_settings.remedy(
    "Leave NVLink to the GPUs within each node until IMEX works",
    Setting(name="NCCL_MNNVL_ENABLE", value="0", why="NCCL then takes the network between nodes"),
    cost="a stop-gap: between the nodes the network carries what NVLink would, many times slower",
)

WITHOUT_CUMEM = nccl_settings.remedy(
    "Let NCCL share GPU memory the older way (CUDA IPC)",
    Setting(name="NCCL_CUMEM_ENABLE", value="0", why="NCCL then imports no memory handles of CUDA's VMM"),
    cost="no NVLink SHARP, and no registered user buffers; P2P stays in use",
    conflicts=("NCCL_NVLS_ENABLE",),
)
