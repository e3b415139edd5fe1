"""DD221: shared memory that is missing or too small."""

import errno
import os
from collections.abc import Iterator

from ddp_doctor.checks.node.host.rules import shortage_draft, shortages
from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.host_limits import NO_SHARED_MEMORY, NOT_LOOKED_AT, in_units
from ddp_doctor.remedies import hardware
from ddp_doctor.views.failed_trials import all_complained
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import by_cause, of_nodes


@rule("DD221", "shared-memory-too-small", Severity.WARNING, Host)
def shared_memory_too_small(recording: Recording) -> Iterator[Draft]:
    """Shared memory is missing, full, or too small for NCCL or for data loaders.

    What it finds
        There is no /dev/shm, it is mounted read-only, or this user may not write there (an error). It has less
        free space than one segment of NCCL (an error with several NCCL ranks on the node), than the segments of
        these ranks (a warning), or no more than Docker's 64 MiB (information).

    Why it matters
        NCCL fails to initialise, and the worker processes of data loaders die of a bus error.

    Remedy
        Docker: --shm-size or --ipc=host. Kubernetes: an emptyDir with medium: Memory at /dev/shm. Elsewhere:
        delete leftover segments, or remount it with a larger size.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    yield from _without_shared_memory(recording)
    for short in shortages(recording, _shm, lambda fact: fact.shm_free_bytes, of_the_job=False):
        if all_complained(recording, (node.node for node in short.nodes), "shm"):
            continue  # NCCL failed over it, which is a finding of its own
        fact, ranks = short.worst.fact, short.ranks
        free, total = fact.shm_free_bytes or 0, fact.shm_total_bytes or 0
        wanted = max(ranks * thresholds.NCCL_SHM_PER_RANK_BYTES, thresholds.DOCKER_SHM_BYTES)
        text, users = (
            f"{in_units(total)} in all, of which {in_units(free)} are free",
            "NCCL" if _nccl(short.world, ranks) else "data loaders",
        )
        saw = Evidence(
            text=f"in /dev/shm {text}",
            value=free,
            unit="B",
            expected=wanted,
            expected_from=f"segments of {ranks} NCCL ranks; Docker's default",
        )
        title = f"Shared memory on {{who}} is too small for {users}: /dev/shm has {text}"
        remedy = hardware.shared_memory(total, ranks, in_container=fact.in_container)
        detail = (
            f"It takes {in_units(wanted)} or more. With too little NCCL fails to start, and workers of data loaders"
            " die of a bus error."
        )
        yield shortage_draft(recording, short, title, saw, remedy, detail=detail)


def _without_shared_memory(recording: Recording) -> Iterator[Draft]:
    """The nodes on which no process can make a segment at all."""
    for problem, group in by_cause(recording.facts(Host), _no_segment).items():
        if recording.world is None or all_complained(recording, (node.node for node in group), "shm"):
            continue
        yield proved(
            of_nodes(recording, group),
            f"No shared memory on {{who}}: {problem}",
            Evidence(text=problem, expected_from="a tmpfs that every user may write to"),
            hardware.mount_shared_memory(in_container=group[0].fact.in_container),
            detail="Data loaders with worker processes fail to start, and so does NCCL between GPUs of one node.",
            severity=Severity.ERROR,
        )


def _no_segment(fact: Host) -> str | None:
    problem = fact.shm_problem
    if problem == f"{NOT_LOOKED_AT}{os.strerror(errno.ENOENT)}":  # as former releases recorded it
        return NO_SHARED_MEMORY
    return None if problem is None or problem.startswith(NOT_LOOKED_AT) else problem


def _nccl(world: World, ranks: int) -> bool:
    """Whether NCCL's ranks on one node share memory."""
    return world.backend == "nccl" and ranks > 1


def _shm(fact: Host, ranks: int, world: World) -> Severity | None:
    if fact.shm_free_bytes is None or fact.shm_problem is not None:
        return None
    if fact.shm_free_bytes < thresholds.NCCL_SHM_SEGMENT_BYTES:
        return Severity.ERROR if _nccl(world, ranks) else Severity.WARNING
    if _nccl(world, ranks) and fact.shm_free_bytes < ranks * thresholds.NCCL_SHM_PER_RANK_BYTES:
        return Severity.WARNING
    return Severity.INFO if fact.shm_free_bytes <= thresholds.DOCKER_SHM_BYTES else None
