"""What NCCL can do without, with the price of each, and what a container or an IMEX domain needs for it.

Sources: NCCL user guide, Troubleshooting (Sharing Data, Docker, cuMem host allocations) and environment variables
NCCL_SHM_DISABLE, NCCL_CUMEM_HOST_ENABLE, NCCL_NVLS_ENABLE, NCCL_MNNVL_ENABLE and NCCL_CUMEM_ENABLE; NCCL
src/transport/shm.cc, src/misc/cudawrap.cc (ncclCuMemHostEnable), src/transport/nvls.cc and src/mnnvl.cc; NVIDIA
IMEX service guide.
"""

from ddp_doctor.model.finding import Setting
from ddp_doctor.phrases import nccl_settings
from ddp_doctor.remedies.kinds import by_administrator, remedy

WITHOUT_SHM = nccl_settings.remedy(
    "Let NCCL do without shared memory until there is room",
    Setting(name="NCCL_SHM_DISABLE", value="1", why="NCCL then needs no room in /dev/shm"),
    cost="a stop-gap: GPUs of one node without P2P then talk through the network, several times slower",
)


ALLOW_NUMA = remedy(
    "Start the container with --cap-add SYS_NICE, which lets NCCL place host memory near each GPU",
    "docker run --cap-add SYS_NICE …",
    "# Kubernetes: securityContext.capabilities.add: [SYS_NICE]",
    cost="the container's processes may also raise their own priority",
    undo="start it without the option",
    untried="the doctor starts no container",
    references=(nccl_settings.TROUBLE,),
    container=("--cap-add=SYS_NICE",),
)


WITHOUT_CUMEM_HOST = nccl_settings.remedy(
    "Let NCCL share host memory through /dev/shm, as it did before 2.24",
    Setting(
        name="NCCL_CUMEM_HOST_ENABLE", value="0", why="NCCL then needs no NUMA calls for its host memory"
    ),
    cost="little: it takes room in /dev/shm, 10 MiB for each pair of ranks",
)


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
