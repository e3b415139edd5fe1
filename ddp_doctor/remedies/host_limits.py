"""What gives a container or host the memory that NCCL needs."""

import math

from ddp_doctor.knowledge.thresholds import (
    GIB,
    LARGE_SHM_BYTES,
    NCCL_SHM_PER_RANK_BYTES,
    RECOMMENDED_SHM_BYTES,
)
from ddp_doctor.model.finding import Remedy
from ddp_doctor.remedies.kinds import remedy

NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


UNCHANGED = "the doctor changes no limit of the host"


def shared_memory(found_bytes: int, ranks: int, *, in_container: bool) -> Remedy:
    """A bigger /dev/shm: twice what was found, and at least what NCCL's guide and these ranks ask for.

    A large one that is full is not too small: something filled it.
    """
    if found_bytes >= LARGE_SHM_BYTES:
        return remedy(
            "Delete the segments in /dev/shm that no process uses any more",
            "ls -l /dev/shm",
            "fuser -v /dev/shm/*",
            cost="a segment still in use must stay",
            untried=UNCHANGED,
            references=(NCCL_GUIDE,),
        )
    wanted = max(RECOMMENDED_SHM_BYTES, 2 * found_bytes, ranks * NCCL_SHM_PER_RANK_BYTES)
    gib = math.ceil(wanted / GIB)
    if in_container:
        return remedy(
            f"Start the container with --shm-size={gib}g or --ipc=host; in Kubernetes mount an "
            f"emptyDir with medium: Memory and sizeLimit: {gib}Gi at /dev/shm",
            f"docker run --shm-size={gib}g …",
            "docker run --ipc=host …",
            cost="takes memory only as far as it is used; --ipc=host shares the host's segments",
            undo="start it without the option",
            untried=UNCHANGED,
            references=(NCCL_GUIDE,),
            container=(f"--shm-size={gib}g",),
        )
    return remedy(
        f"Delete segments that no process uses any more, or give /dev/shm {gib} GiB",
        "ls -l /dev/shm",
        f"mount -o remount,size={gib}g /dev/shm",
        cost="takes memory only as far as it is used",
        undo=f"mount -o remount,size={found_bytes} /dev/shm",
        untried=UNCHANGED,
        references=(NCCL_GUIDE,),
    )


def locked_memory(launcher: str, *, in_container: bool) -> Remedy:
    """Unlimited locked memory, set where this process got its limit from."""
    if in_container:
        summary, command = "Start the container with --ulimit memlock=-1", "docker run --ulimit memlock=-1 …"
    elif launcher == "slurm":
        summary = (
            "Let slurmd give jobs its own limit: PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and "
            "LimitMEMLOCK=infinity in slurmd.service"
        )
        command = "systemctl edit slurmd"
    else:
        summary = 'Allow it in /etc/security/limits.d ("* - memlock unlimited") and log in again'
        command = "ulimit -l unlimited"
    return remedy(
        summary,
        command,
        cost="a process may then pin all memory",
        undo="set the former limit again",
        untried=UNCHANGED,
        references=(NCCL_GUIDE,),
        container=("--ulimit=memlock=-1",) if in_container else (),
    )
