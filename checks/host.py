"""The host's limits that a DDP job runs into: shared memory, locked memory, files, CPUs, memory, clock.

NCCL fails to start where /dev/shm is full (Docker gives 64 MiB) or RDMA memory cannot be locked; a CPU quota
slows all ranks. A limit is a finding only where something uses it. Raw input (cgroups: parse/cgroup.py)::

    statvfs("/dev/shm")                      67108864 bytes, 0 free
    getrlimit(MEMLOCK), getrlimit(NOFILE)    8388608, 1024
    /sys/class/infiniband/mlx5_0/ports/1/state                        4: ACTIVE
    /sys/devices/system/clocksource/clocksource0/current_clocksource  tsc
"""

from collections.abc import Callable, Iterator
from typing import ClassVar

from pydantic import PositiveInt

from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Severity, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.rule import rule
from ddp_doctor.parse import cgroup, host_gpus, host_limits
from ddp_doctor.parse.host_limits import in_units
from ddp_doctor.phrases import limits
from ddp_doctor.phrases.limits import Hit
from ddp_doctor.phrases.nodes import by_cause, node_draft


class Host(Fact):
    """The limits of one node for a process of the job; None is "not told", for limits "none"."""

    KIND: ClassVar[str] = "host/1"

    kernel: str | None = None
    in_container: bool = False
    cpus: PositiveInt  # logical CPUs this process may run on
    cpus_are_per_rank: bool = False  # the launcher starts, and may bind, each rank by itself
    host_cpus: int | None = None
    cpu_quota_cpus: float | None = None  # limit: the control group's processor time
    load_1min: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None  # of the host
    cgroup_memory_limit_bytes: int | None = None  # limit
    cgroup_memory_free_bytes: int | None = None  # under that limit
    shm_total_bytes: int | None = None  # limit
    shm_free_bytes: int | None = None
    shm_problem: str | None = None  # why /dev/shm could not be looked at
    memlock_bytes: int | None = None  # limit
    memlock_is_ignored: bool = False  # the kernel lets this process lock more
    open_files: int | None = None  # limit
    omp_num_threads: int | None = None
    clock_source: str | None = None
    rdma_devices: tuple[str, ...] = ()  # with an active port
    rdma_unused_by: str | None = None  # the setting that keeps NCCL from them

    @property
    def usable_cpus(self) -> float:
        """What the job can run at once: the CPUs it may use, under the quota."""
        return min(float(self.cpus), self.cpu_quota_cpus or float(self.cpus))

    @property
    def free_memory_bytes(self) -> int | None:
        """What a new process can take, of the host and under the control group's limit."""
        known = (self.memory_available_bytes, self.cgroup_memory_free_bytes)
        return min((value for value in known if value is not None), default=None)


def probe(ctx: Context) -> Host:
    """Read the limits; what this kernel does not tell stays None."""
    read = host_limits.reader(ctx)
    meminfo, group = read("/proc/meminfo") or "", cgroup.limits(read)
    shm, shm_problem = host_limits.shared_memory(ctx)
    return Host(
        kernel=host_limits.kernel(read),
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
        shm_problem=shm_problem,
        memlock_bytes=ctx.limit("MEMLOCK"),
        memlock_is_ignored=host_limits.memlock_is_ignored(read),
        open_files=ctx.limit("NOFILE"),
        omp_num_threads=host_limits.omp_threads(ctx.env.get("OMP_NUM_THREADS", "")),
        clock_source=host_limits.clock_source(read),
        rdma_devices=host_limits.rdma_devices(ctx),
        rdma_unused_by=host_limits.rdma_unused_by(ctx.env),
    )


def _hits(
    recording: Recording,
    judge: Callable[[Host, int, World], Severity | None],
    least: Callable[[Host], float | None],
    *,
    of_the_job: bool = True,
) -> Iterator[Hit[Host]]:
    """The nodes that ``judge`` speaks of; the worst has the ``least`` of something.

    ``of_the_job``: about limits of the job's own process, which a prolog, being root's, does not have.
    """
    if not (of_the_job and recording.options.command == "prolog"):
        yield from limits.hits(recording, Host, judge, least)


def _saw(text: str, value: float, unit: str, expected: float, source: str) -> Evidence:
    return Evidence(check="host", text=text, value=value, unit=unit, expected=expected, expected_from=source)


@rule("DD221", "shared-memory-too-small", Severity.WARNING, Host)
def shared_memory_too_small(recording: Recording) -> Iterator[Draft]:
    """Shared memory is full, or too small for NCCL or for data loaders.

    What it finds
        /dev/shm has less free space than one segment of NCCL (an error with several NCCL ranks on the node),
        than the segments of these ranks (a warning), or no more than Docker's 64 MiB (information).

    Why it matters
        NCCL fails to initialise, and the worker processes of data loaders die of a bus error.

    Remedy
        Docker: --shm-size or --ipc=host. Kubernetes: an emptyDir with medium: Memory at /dev/shm. Elsewhere:
        delete leftover segments, or remount it with a larger size.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    for hit in _hits(recording, _shm, lambda fact: fact.shm_free_bytes, of_the_job=False):
        fact, ranks = hit.worst.fact, hit.ranks
        free, total = fact.shm_free_bytes or 0, fact.shm_total_bytes or 0
        wanted = max(ranks * thresholds.NCCL_SHM_PER_RANK_BYTES, thresholds.DOCKER_SHM_BYTES)
        text, users = (
            f"{in_units(free)} of {in_units(total)} free",
            "NCCL" if _nccl(hit.world, ranks) else "data loaders",
        )
        saw = _saw(
            f"in /dev/shm {text}", free, "B", wanted, f"segments of {ranks} NCCL ranks; Docker's default"
        )
        title = f"Shared memory on {{nodes}} is too small for {users}: {text} in /dev/shm"
        remedy = limits.shared_memory(total, ranks, in_container=fact.in_container)
        detail = f"{in_units(wanted)} or more are wanted. NCCL fails at its start, worker processes by a bus error."
        yield limits.hit_draft(recording, hit, title, saw, remedy, detail=detail)


def _nccl(world: World, ranks: int) -> bool:
    """Whether NCCL's ranks on one node share memory."""
    return world.backend == "nccl" and ranks > 1


def _shm(fact: Host, ranks: int, world: World) -> Severity | None:
    if fact.shm_free_bytes is None:
        return None
    if fact.shm_free_bytes < thresholds.NCCL_SHM_SEGMENT_BYTES:
        return Severity.ERROR if _nccl(world, ranks) else Severity.WARNING
    if _nccl(world, ranks) and fact.shm_free_bytes < ranks * thresholds.NCCL_SHM_PER_RANK_BYTES:
        return Severity.WARNING
    return Severity.INFO if fact.shm_free_bytes <= thresholds.DOCKER_SHM_BYTES else None


@rule("DD222", "locked-memory-too-low-for-rdma", Severity.ERROR, Host)
def locked_memory_too_low_for_rdma(recording: Recording) -> Iterator[Draft]:
    """RDMA devices are there, and too little memory may be locked to use them.

    What it finds
        RLIMIT_MEMLOCK under 64 MiB for NCCL ranks on a node with an active RDMA port that NCCL is not kept
        from. A warning where the job has one node only, and so may never use it.

    Why it matters
        NCCL's connections fail: "ibv_reg_mr failed with error Cannot allocate memory".

    Remedy
        Make it unlimited where the process has it from: --ulimit memlock=-1, slurmd, or limits.d.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    for hit in _hits(recording, _memlock, lambda fact: fact.memlock_bytes):
        fact = hit.worst.fact
        allowed, devices = fact.memlock_bytes or 0, ", ".join(fact.rdma_devices)
        text, wanted = f"RLIMIT_MEMLOCK {in_units(allowed)} beside {devices}", thresholds.RDMA_MEMLOCK_BYTES
        saw = _saw(text, allowed, "B", wanted, "NCCL's user guide asks for unlimited")
        title = f"Only {in_units(allowed)} of memory may be locked on {{nodes}}, too little for RDMA"
        remedy = limits.locked_memory(hit.world.launcher, in_container=fact.in_container)
        detail = f"NCCL pins the buffers of every connection over {devices}, and fails where it may not."
        yield limits.hit_draft(recording, hit, title, saw, remedy, detail=detail)


def _memlock(fact: Host, _ranks: int, world: World) -> Severity | None:
    unused = world.backend != "nccl" or not fact.rdma_devices or fact.rdma_unused_by is not None
    too_low = fact.memlock_bytes is not None and fact.memlock_bytes < thresholds.RDMA_MEMLOCK_BYTES
    if unused or fact.memlock_is_ignored or not too_low:
        return None
    return Severity.ERROR if world.nnodes > 1 else Severity.WARNING


@rule("DD223", "too-few-open-files", Severity.WARNING, Host)
def too_few_open_files(recording: Recording) -> Iterator[Draft]:
    """The limit of open files is too low for a world of this size.

    What it finds
        RLIMIT_NOFILE under 128 and two for each rank of the world.

    Why it matters
        Every connection, and every tensor that a data loader passes, is a file: "Too many open files".

    Remedy
        ulimit -n in the script that starts the job.

    References
        https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies
    """
    for hit in _hits(recording, _files, lambda fact: fact.open_files):
        allowed, wanted = hit.worst.fact.open_files or 0, thresholds.open_files(hit.world.world_size)
        saw = _saw(f"RLIMIT_NOFILE {allowed}", allowed, "files", wanted, "measured on ranks with gloo")
        title = f"Only {allowed} files may be open on {{nodes}}, too few for {hit.world.world_size} ranks"
        detail = "Each connection takes one; a rank that runs out fails with Too many open files."
        yield limits.hit_draft(
            recording, hit, title, saw, limits.open_files(max(wanted, 4096)), detail=detail
        )


def _files(fact: Host, _ranks: int, world: World) -> Severity | None:
    few = fact.open_files is not None and fact.open_files < thresholds.open_files(world.world_size)
    return Severity.WARNING if few else None


@rule("DD224", "too-few-cpus-for-ranks", Severity.WARNING, Host)
def too_few_cpus_for_ranks(recording: Recording) -> Iterator[Draft]:
    """Fewer CPUs than ranks on the node, by affinity or by the control group's quota.

    What it finds
        Several ranks that may use less than one CPU each. Information where they do not use NCCL.

    Why it matters
        A GPU is fed by its rank's main thread and served by NCCL's proxy threads. Ranks that take turns on a
        CPU, or that a quota stops for up to 100 ms, make all others wait at every all-reduce.

    Remedy
        Ask for more CPUs, or start fewer ranks.

    References
        https://docs.kernel.org/scheduler/sched-bwc.html
    """
    for hit in _hits(recording, _cpus, lambda fact: fact.usable_cpus):
        fact, ranks = hit.worst.fact, hit.ranks
        quota = "no quota" if fact.cpu_quota_cpus is None else f"a quota of {fact.cpu_quota_cpus:g}"
        text, has = f"{fact.cpus} CPUs in the affinity mask, {quota}", fact.usable_cpus
        title = f"{ranks} ranks share {has:g} CPUs on {{nodes}}"
        detail = "A rank that waits for its turn on a CPU makes all others wait at every all-reduce."
        saw = _saw(text, has, "CPUs", ranks, "one for each rank")
        yield limits.hit_draft(recording, hit, title, saw, limits.cpus(ranks), detail=detail)


def _cpus(fact: Host, ranks: int, world: World) -> Severity | None:
    sharing = 1 if fact.cpus_are_per_rank else ranks
    if sharing < 2 or fact.usable_cpus >= sharing:
        return None
    return Severity.WARNING if world.backend == "nccl" else Severity.INFO


@rule("DD225", "too-little-memory-for-ranks", Severity.WARNING, Host)
def too_little_memory_for_ranks(recording: Recording) -> Iterator[Draft]:
    """Less free memory than bare ranks take.

    What it finds
        MemAvailable, or what is free under the control group's limit, below 206 MiB for each rank.

    Why it matters
        The kernel kills a rank (exit code -9), and the others wait for it until their time-out.

    Remedy
        End what fills the memory, ask for more, or start fewer ranks.

    References
        https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
    """
    for hit in _hits(recording, _memory, lambda fact: fact.free_memory_bytes, of_the_job=False):
        free = hit.worst.fact.free_memory_bytes or 0
        ranks, wanted = hit.ranks, thresholds.memory(hit.ranks)
        saw = _saw(f"{in_units(free)} available", free, "B", wanted, "measured: a bare rank takes 206 MiB")
        title = f"{in_units(free)} of memory are free on {{nodes}}, too little for {ranks} ranks"
        detail = "The kernel will kill a rank, and the others will wait for it until their time-out."
        yield limits.hit_draft(recording, hit, title, saw, limits.memory(ranks), detail=detail)


def _memory(fact: Host, ranks: int, _world: World) -> Severity | None:
    free = fact.free_memory_bytes
    return Severity.WARNING if free is not None and free < thresholds.memory(ranks) else None


@rule("DD226", "omp-threads-oversubscribe-cpus", Severity.WARNING, Host)
def omp_threads_oversubscribe_cpus(recording: Recording) -> Iterator[Draft]:
    """OMP_NUM_THREADS times the ranks is more than the CPUs.

    What it finds
        OMP_NUM_THREADS is set, and gives several ranks more threads than CPUs; information up to twice as
        many. Where it is not set, torchrun gives each of several ranks one thread.

    Why it matters
        OpenMP's threads spin while they wait for each other, so each rank's work on the CPU slows down.

    Remedy
        Set it to the CPUs that each rank has.

    References
        https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    for hit in _hits(recording, _omp, lambda fact: -_threads_per_cpu(fact)):
        fact, ranks = hit.worst.fact, hit.ranks
        threads, has = (fact.omp_num_threads or 1) * ranks, fact.usable_cpus
        text = f"OMP_NUM_THREADS={fact.omp_num_threads} and {ranks} ranks"
        title = f"{text} start {threads} threads on {{nodes}} for {has:g} CPUs"
        detail = "Threads that wait for each other spin, so work on the CPU slows down in every rank."
        saw = _saw(text, threads, "threads", has, "one thread for each CPU")
        yield limits.hit_draft(recording, hit, title, saw, limits.omp_threads(ranks, int(has)), detail=detail)


def _threads_per_cpu(fact: Host) -> float:
    return (fact.omp_num_threads or 0) / fact.usable_cpus


def _omp(fact: Host, ranks: int, _world: World) -> Severity | None:
    ratio = _threads_per_cpu(fact) * ranks
    if ratio <= 1 or ranks < 2 or fact.omp_num_threads == 1 or fact.cpus_are_per_rank:
        return None
    return Severity.WARNING if ratio > thresholds.OMP_THREADS_PER_CPU else Severity.INFO


@rule("DD227", "slow-clock-or-busy-host", Severity.INFO, Host)
def slow_clock_or_busy_host(recording: Recording) -> Iterator[Draft]:
    """Something slows the whole host: a slow clock source, or other work.

    What it finds
        hpet, acpi_pm or a timer tick as the clock source; a load of more than two for each CPU.

    Why it matters
        Measurements are off. A slow clock takes microseconds to read instead of some 20 ns, and the kernel
        turns to it when it finds the processor's counter unstable.

    Remedy
        See in the kernel log why tsc was given up ("Marking clocksource unstable"); end the other work.

    References
        https://docs.kernel.org/timers/timekeeping.html
    """
    for fault, group in by_cause(recording.facts(Host), _slowed).items():
        saw = Evidence(check="host", text=fault, expected_from="an idle host with tsc or a virtual clock")
        detail = "What is measured here may be slower than the job will be."
        yield node_draft(recording, group, f"Slow host {{nodes}}: {fault}", saw, detail=detail)


def _slowed(fact: Host) -> str | None:
    if fact.clock_source in thresholds.SLOW_CLOCK_SOURCES:
        return f"the clock source is {fact.clock_source}"
    per_cpu = (fact.load_1min or 0) / (fact.host_cpus or fact.cpus)
    return "other work keeps its CPUs busy" if per_cpu > thresholds.LOAD_PER_CPU else None


CHECK = Check(
    id="host",
    title="Shared memory, limits, CPUs, memory and clock of the host",
    where=Where.NODE,
    probe=probe,
    facts=(Host,),
    rules=(
        shared_memory_too_small,
        locked_memory_too_low_for_rdma,
        too_few_open_files,
        too_few_cpus_for_ranks,
        too_little_memory_for_ranks,
        omp_threads_oversubscribe_cpus,
        slow_clock_or_busy_host,
    ),
    cost_s=0.05,
)
