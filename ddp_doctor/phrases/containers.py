"""What a container is started with so that NCCL finds its memory, and what to do until then.

Sources: NCCL user guide, Troubleshooting (Sharing Data, Docker, cuMem host allocations) and environment variables
NCCL_SHM_DISABLE and NCCL_CUMEM_HOST_ENABLE; NCCL src/transport/shm.cc, src/misc/cudawrap.cc (ncclCuMemHostEnable).
"""

from ddp_doctor.model.finding import Setting
from ddp_doctor.phrases import nccl_settings
from ddp_doctor.remedies.kinds import remedy

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
