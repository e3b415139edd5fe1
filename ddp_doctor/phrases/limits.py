"""Limits of a host or container: the nodes that have too little of something, and what mends it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ddp_doctor.knowledge.thresholds import (
    GIB,
    LARGE_SHM_BYTES,
    NCCL_SHM_PER_RANK_BYTES,
    RECOMMENDED_SHM_BYTES,
)
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Draft, Evidence, Proof, Remedy, Setting
from ddp_doctor.model.recording import Recording, Seen, World
from ddp_doctor.phrases.nodes import host, node_draft
from ddp_doctor.remedies.kinds import remedy

F = TypeVar("F", bound=Fact)

NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_NOT_TRIED = "the doctor changes no limit of the host"


@dataclass(frozen=True)
class Hit(Generic[F]):
    """Nodes that share a fault; what is told of it are the figures of the worst of them."""

    severity: Severity
    nodes: Sequence[Seen[F]]
    world: World
    worst: Seen[F]

    @property
    def ranks(self) -> int:
        """How many ranks the worst node has."""
        return len(self.world.ranks_of(self.worst.node))


def hits(
    recording: Recording,
    kind: type[F],
    judge: Callable[[F, int, World], Severity | None],
    least: Callable[[F], float | None],
) -> Iterator[Hit[F]]:
    """The nodes that ``judge``, given each with its number of ranks, finds fault with, by severity.

    The worst has the ``least`` of something. Without a world nothing uses a limit.
    """
    groups: dict[Severity, list[Seen[F]]] = {}
    world = recording.world
    if world is None:
        return
    for seen in recording.facts(kind):
        severity = judge(seen.fact, len(world.ranks_of(seen.node)), world)
        if severity is not None:
            groups.setdefault(severity, []).append(seen)
    for severity, nodes in groups.items():
        yield Hit(severity, nodes, world, min(nodes, key=lambda seen: least(seen.fact) or 0))


def hit_draft(
    recording: Recording, hit: Hit[F], title: str, saw: Evidence, remedy: Remedy, *, detail: str
) -> Draft:
    """A finding about all nodes of a hit, which says whose figures it shows."""
    if len(hit.nodes) > 1:
        saw = saw.model_copy(update={"text": f"worst on {host(recording, hit.worst.node)}: {saw.text}"})
    draft = node_draft(recording, hit.nodes, title, saw, remedy, detail=detail, severity=hit.severity)
    return draft.model_copy(update={"confidence": Confidence.LIKELY})


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
            untried=_NOT_TRIED,
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
            untried=_NOT_TRIED,
            references=(NCCL_GUIDE,),
            container=(f"--shm-size={gib}g",),
        )
    return remedy(
        f"Delete segments that no process uses any more, or give /dev/shm {gib} GiB",
        "ls -l /dev/shm",
        f"mount -o remount,size={gib}g /dev/shm",
        cost="takes memory only as far as it is used",
        undo=f"mount -o remount,size={found_bytes} /dev/shm",
        untried=_NOT_TRIED,
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
        untried=_NOT_TRIED,
        references=(NCCL_GUIDE,),
        container=("--ulimit=memlock=-1",) if in_container else (),
    )


def open_files(wanted: int) -> Remedy:
    """More file descriptors, in the shell that starts the job."""
    return remedy(
        f"Raise the limit of open files to {wanted} or more before the job starts",
        f"ulimit -n {wanted}",
        scope="job",
        undo="start a new shell",
        untried=_NOT_TRIED,
    )


def cpus(ranks: int) -> Remedy:
    """A CPU for each rank, and one more for its data loaders."""
    return remedy(
        f"Give the job at least {2 * ranks} CPUs on the node, or start fewer ranks: --cpus-per-task in "
        "SLURM, --cpus in Docker, resources.limits.cpu in Kubernetes",
        f"sbatch --cpus-per-task={2 * ranks} …",
        f"docker run --cpus={2 * ranks} …",
        scope="job",
        cost="other jobs get fewer CPUs",
        undo="ask for fewer again",
        untried="the doctor cannot give itself more CPUs",
    )


def memory(ranks: int) -> Remedy:
    """More memory, or fewer ranks."""
    return remedy(
        f"Give the job more memory, start fewer than {ranks} ranks, or end what else fills it",
        "ps -eo pid,user,rss,comm --sort=-rss | head",
        untried="the doctor cannot give itself more memory",
    )


def omp_threads(ranks: int, cpu_count: int) -> Remedy:
    """As many OpenMP threads as each rank has CPUs."""
    threads = max(cpu_count // ranks, 1)
    why = f"{cpu_count} CPUs shared by {ranks} ranks"
    return Remedy(
        summary=f"Give each rank {threads} OpenMP thread{'s' if threads > 1 else ''}",
        settings=(Setting(name="OMP_NUM_THREADS", value=str(threads), why=why),),
        cost="a rank that alone does heavy CPU work has fewer threads",
        undo="export the former value",
        proof=Proof(reason="it is read when a library loads, and no trial was made with it"),
    )
