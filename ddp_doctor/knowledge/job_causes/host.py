"""Causes in the host or its container: shared memory, memory, limits."""

from ddp_doctor.knowledge.job_causes.kinds import JobCause, Sign
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Remedy

CAUSES = (
    JobCause(
        code="DDJ101",
        name="shm-too-small",
        title="/dev/shm of {who} is too small for NCCL",
        domain="host",
        restart="no",
        finds="NCCL cannot make or extend a segment in /dev/shm, because there is no space left on it.",
        why="Ranks of one node that have no P2P between their GPUs exchange data through /dev/shm. A container gets"
        " 64 MB of it unless it is asked for more.",
        remedies=(
            Remedy(
                summary="Give the container more shared memory",
                commands=("docker run --shm-size=8g …",),
                container=("--shm-size=8g",),
            ),
        ),
        next_check="df -h /dev/shm in the container of the job",
        references=("NCCL 2.4 to 2.30, src/misc/shmutils.cc and src/include/shm.h",),
        signs=(
            Sign(
                "shm-no-space",
                ("/dev/shm/nccl-", "Call to posix_fallocate failed"),
                r"NCCL WARN .*No space left on device",
                tier="nccl",
                confidence=Confidence.PROVED,
            ),
        ),
    ),
)
