"""What a container is started with so that NCCL finds its memory, and what to do until then.

Sources: NCCL user guide, Troubleshooting (Sharing Data, Docker, cuMem host allocations) and environment variables
NCCL_SHM_DISABLE and NCCL_CUMEM_HOST_ENABLE; NCCL src/transport/shm.cc, src/misc/cudawrap.cc (ncclCuMemHostEnable).
"""

from ddp_doctor.model.finding import Proof, Remedy, Setting

_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"

WITHOUT_SHM = Remedy(
    summary="Let NCCL do without shared memory until there is room",
    settings=(Setting(name="NCCL_SHM_DISABLE", value="1", why="NCCL then needs no room in /dev/shm"),),
    cost="a stop-gap: GPUs of one node without P2P then talk through the network, several times slower",
    undo="unset NCCL_SHM_DISABLE",
    proof=Proof(reason="no trial with this setting was recorded"),
    references=(_GUIDE + "env.html#nccl-shm-disable",),
    conflicts=("NCCL_P2P_DISABLE",),
)

ALLOW_NUMA = Remedy(
    summary="Start the container with --cap-add SYS_NICE, which lets NCCL place host memory near each GPU",
    commands=(
        "docker run --cap-add SYS_NICE …",
        "# Kubernetes: securityContext.capabilities.add: [SYS_NICE]",
    ),
    scope="node",
    cost="the container's processes may also raise their own priority",
    undo="start it without the option",
    proof=Proof(reason="the doctor starts no container"),
    references=(_GUIDE + "troubleshooting.html",),
    container=("--cap-add=SYS_NICE",),
)

WITHOUT_CUMEM_HOST = Remedy(
    summary="Let NCCL share host memory through /dev/shm, as it did before 2.24",
    settings=(
        Setting(
            name="NCCL_CUMEM_HOST_ENABLE", value="0", why="NCCL then needs no NUMA calls for its host memory"
        ),
    ),
    cost="little: it takes room in /dev/shm, 10 MiB for each pair of ranks",
    undo="unset NCCL_CUMEM_HOST_ENABLE",
    proof=Proof(reason="no trial with this setting was recorded"),
    references=(_GUIDE + "env.html#nccl-cumem-host-enable",),
)
