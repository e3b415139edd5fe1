"""The host's limits that a DDP job runs into: shared memory, locked memory, files, CPUs, memory, clock, loopback.

NCCL fails to start if /dev/shm is full (Docker gives 64 MiB) or RDMA memory cannot be locked. A CPU quota slows all
ranks down. A limit is reported only if something uses it. Raw input (cgroups: parse/cgroup.py)::

    statvfs("/dev/shm")                      67108864 bytes, 0 free
    getrlimit(MEMLOCK), getrlimit(NOFILE)    8388608, 1024
    getifaddrs()                             lo: up, 127.0.0.1/8
    /sys/class/infiniband/mlx5_0/ports/1/state                        4: ACTIVE
    /sys/devices/system/clocksource/clocksource0/current_clocksource  tsc
    /sys/class/dmi/id/sys_vendor             Amazon EC2 (probing/host_limits.py)
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import asdict

from ddp_doctor.checks.node.host import rules
from ddp_doctor.checks.node.host.rules import shortage_draft, shortages
from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Consequence, Severity, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.rule import rule, rules_in
from ddp_doctor.parse import cgroup
from ddp_doctor.probing import host_gpus, host_limits
from ddp_doctor.probing.host_limits import NO_SHARED_MEMORY, NOT_LOOKED_AT
from ddp_doctor.remedies import hardware
from ddp_doctor.views.failed_trials import all_complained
from ddp_doctor.wording.findings import in_units, proved
from ddp_doctor.wording.nodes import by_cause, of_nodes


@rule("DD221", "shared-memory-too-small", Consequence.RISK, Host)
def shared_memory_too_small(recording: Recording) -> Iterator[Draft]:
    """Shared memory is missing, full, or too small for NCCL or for data loaders.

    Finds: Reports an error if /dev/shm does not exist, is mounted read-only, or is not writable for this user, or if
        several NCCL ranks run on the node and the free space is below one NCCL segment. Reports a warning if the free
        space is below the segments of all these ranks, or at most Docker's 64 MiB.
    Why: NCCL fails to initialize, and worker processes of data loaders die of a bus error.
    Remedy: Docker: use --shm-size or --ipc=host. Kubernetes: mount an emptyDir with medium: Memory at /dev/shm.
        Elsewhere: delete leftover segments, or remount it with a larger size.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    yield from _without_shared_memory(recording)
    for short in shortages(recording, _shm, lambda fact: fact.shm_free_bytes, of_the_job=False):
        if all_complained(recording, (node.node for node in short.nodes), "DD237"):
            continue  # NCCL failed because of it, which has its own finding
        fact, ranks = short.worst.fact, short.ranks
        free, total = fact.shm_free_bytes or 0, fact.shm_total_bytes or 0
        by_nccl = _nccl_shares_memory(short.world, ranks)
        wanted = max(by_nccl * ranks * thresholds.NCCL_SHM_PER_RANK_BYTES, thresholds.DOCKER_SHM_BYTES)
        text, users = (f"{in_units(free)} of {in_units(total)} free", "NCCL" if by_nccl else "data loaders")
        saw = Evidence(
            text="free in /dev/shm",
            value=free,
            unit="B",
            expected=wanted,
            expected_from=f"at least, for the segments of {ranks} NCCL ranks and Docker's default"
            if by_nccl
            else "more than Docker's default",
        )
        title = f"Shared memory on {{who}} is too small for {users}: /dev/shm has {text}"
        remedy = hardware.shared_memory(total, ranks, in_container=fact.in_container)
        detail = (
            (
                f"The job needs {in_units(wanted)} or more. Otherwise, NCCL fails to start and"
                " data loader workers crash with a bus error."
            )
            if by_nccl
            else "Data loader workers crash with a bus error if it is full."
        )
        yield shortage_draft(recording, short, title, saw, remedy, detail=detail)


def _without_shared_memory(recording: Recording) -> Iterator[Draft]:
    """Report the nodes that do not allow processes to create a shared memory segment."""
    for problem, group in by_cause(recording.facts(Host), _no_segment).items():
        if recording.world is None or all_complained(recording, (node.node for node in group), "shm"):
            continue
        yield proved(
            of_nodes(recording, group),
            f"Shared memory on {{who}} is unusable: {problem}",
            Evidence(text=problem, expected_from="a tmpfs that every user can write to"),
            hardware.mount_shared_memory(in_container=group[0].fact.in_container),
            detail="Data loaders with worker processes and NCCL between GPUs of one node fail to start.",
            severity=Severity.ERROR,
        )


def _no_segment(fact: Host) -> str | None:
    problem = fact.shm_problem
    if problem == f"{NOT_LOOKED_AT}{os.strerror(errno.ENOENT)}":  # as earlier releases recorded it
        return NO_SHARED_MEMORY
    return None if problem is None or problem.startswith(NOT_LOOKED_AT) else problem


def _nccl_shares_memory(world: World, ranks: int) -> bool:
    return world.backend == "nccl" and ranks > 1


def _shm(fact: Host, ranks: int, world: World) -> Severity | None:
    if fact.shm_free_bytes is None or fact.shm_problem is not None:
        return None
    if fact.shm_free_bytes < thresholds.NCCL_SHM_SEGMENT_BYTES:
        return Severity.ERROR if _nccl_shares_memory(world, ranks) else Severity.WARNING
    if _nccl_shares_memory(world, ranks) and fact.shm_free_bytes < ranks * thresholds.NCCL_SHM_PER_RANK_BYTES:
        return Severity.WARNING
    return Severity.WARNING if fact.shm_free_bytes <= thresholds.DOCKER_SHM_BYTES else None


def probe(ctx: Context) -> Host:
    """Read the limits; a limit that this kernel does not show stays None."""
    read = host_limits.reader(ctx)
    meminfo, group = read("/proc/meminfo") or "", cgroup.limits(read)
    shm, shm_problem = host_limits.shared_memory(ctx)
    fact = Host(
        kernel=(read("/proc/sys/kernel/osrelease") or "").strip() or None,
        in_container=host_gpus.in_container(ctx),
        cpus=ctx.cpus(),
        cpus_are_per_rank=host_limits.several_tasks(ctx.env),
        host_cpus=host_limits.online_cpus(read("/proc/stat") or ""),
        cpu_quota_cpus=group.cpu_quota_cpus,
        load_1min=host_limits.load_1min(read("/proc/loadavg") or ""),
        memory_total_bytes=host_limits.memory_bytes(meminfo, "MemTotal"),
        memory_available_bytes=host_limits.memory_bytes(meminfo, "MemAvailable"),
        cgroup_memory_limit_bytes=group.memory_limit_bytes,
        cgroup_memory_free_bytes=group.memory_free_bytes,
        shm_total_bytes=shm.total_bytes if shm else None,
        shm_free_bytes=shm.free_bytes if shm else None,
        shm_device=host_limits.shared_memory_device(ctx),
        shm_problem=shm_problem,
        loopback_problem=host_limits.loopback_problem(ctx.interfaces),
        memlock_bytes=ctx.limit("MEMLOCK"),
        memlock_is_ignored=host_limits.memlock_is_ignored(read),
        open_files=ctx.limit("NOFILE"),
        omp_num_threads=host_limits.omp_threads(ctx.env.get("OMP_NUM_THREADS", "")),
        clock_source=(read(host_limits.CLOCK_SOURCE) or "").strip() or None,
        rdma_devices=host_limits.rdma_devices(ctx),
        rdma_unused_by=host_limits.rdma_unused_by(ctx.env),
        **asdict(host_limits.maker(ctx)),
    )
    busy = fact.load_per_cpu > thresholds.LOAD_PER_CPU
    return fact.model_copy(update={"busiest": host_limits.busiest(ctx)}) if busy else fact


CHECK = Check(
    id="host",
    title="Shared memory, limits, CPUs, memory and clock of the host",
    where=Where.NODE,
    probe=probe,
    facts=(Host,),
    rules=(shared_memory_too_small, *rules_in(rules)),
    cost_s=0.05,
)
