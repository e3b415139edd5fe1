"""DD222-DD227, DD240: too little locked memory, memory, open files or CPUs, no loopback, and hosts that are slowed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ddp_doctor.facts.collectives import AllReduceFact
from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Proof, Remedy, Setting
from ddp_doctor.model.recording import FactAt, Recording, World
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import hardware
from ddp_doctor.remedies.hardware import UNCHANGED
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.views.failed_trials import all_complained
from ddp_doctor.views.open_files import is_low, out_of_files
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, LOAD, in_units, likely, proved
from ddp_doctor.wording.nodes import by_cause, host, name_list, of_nodes


@dataclass(frozen=True)
class Shortage:
    """Nodes that have too little of the same thing; the figures of the worst of them are shown."""

    severity: Severity
    nodes: Sequence[FactAt[Host]]
    world: World
    worst: FactAt[Host]

    @property
    def ranks(self) -> int:
        """The number of ranks on the worst node."""
        return len(self.world.ranks_of(self.worst.node))


def shortages(
    recording: Recording,
    severity_of: Callable[[Host, int, World], Severity | None],
    least: Callable[[Host], float | None],
    *,
    of_the_job: bool = True,
) -> Iterator[Shortage]:
    """Yield the nodes with a fault, by severity, which also depends on their number of ranks; None means no fault.

    The worst node has the lowest ``least``. Without a world, nothing uses a limit. ``of_the_job`` marks limits of the
    job's own process, which do not apply to a prolog, because it runs as root.
    """
    world = recording.world
    if world is None or (of_the_job and recording.command.is_of_root):
        return
    graded = [(severity_of(node.fact, len(world.ranks_of(node.node)), world), node) for node in recording.facts(Host)]
    for severity, nodes in grouped(graded).items():
        if severity is not None:
            yield Shortage(severity, nodes, world, min(nodes, key=lambda node: least(node.fact) or 0))


def shortage_draft(
    recording: Recording, short: Shortage, title: str, saw: Evidence, remedy: Remedy, *, detail: str
) -> Draft:
    """Return a finding about all nodes with a shortage; it shows the figures of the worst node."""
    if len(short.nodes) > 1:
        saw = saw.model_copy(update={"text": f"worst on {host(recording, short.worst.node)}: {saw.text}"})
    return likely(of_nodes(recording, short.nodes), title, saw, remedy, detail=detail, severity=short.severity)


@rule("DD224", "too-few-cpus-for-ranks", Consequence.COST, Host)
def too_few_cpus_for_ranks(recording: Recording) -> Iterator[Draft]:
    """The node has fewer CPUs than ranks, because of affinity or the control group's quota.

    Finds: Reports several ranks that have less than one CPU each. Severity is info if they do not use NCCL.
    Why: Each GPU needs its rank's main thread and NCCL's proxy threads. Ranks that share a CPU, or that a quota stops
        for up to 100 ms, make all others wait at every all-reduce.
    Remedy: Request more CPUs, or start fewer ranks.
    See: https://docs.kernel.org/scheduler/sched-bwc.html
    """
    for short in shortages(recording, _cpus, lambda fact: fact.usable_cpus):
        fact, ranks = short.worst.fact, short.ranks
        quota = "no quota" if fact.cpu_quota_cpus is None else f"a quota of {fact.cpu_quota_cpus:g}"
        text, has = f"{fact.cpus} CPUs in the affinity mask, {quota}", fact.usable_cpus
        yield shortage_draft(
            recording,
            short,
            f"{ranks} ranks share {has:g} {'CPU' if has == 1 else 'CPUs'} on {{who}}",
            Evidence(text=text, value=has, unit="CPUs", expected=ranks, expected_from="one per rank"),
            remedy(
                f"Request at least {2 * ranks} CPUs on the node (--cpus-per-task in SLURM,"
                " --cpus in Docker, resources.limits.cpu in Kubernetes), or start fewer ranks",
                f"sbatch --cpus-per-task={2 * ranks} SCRIPT",
                f"docker run --cpus={2 * ranks} IMAGE",
                scope="job",
                cost="fewer CPUs for other jobs",
                undo="request the previous number of CPUs",
                untried="ddp-doctor cannot get more CPUs",
            ),
            detail="A rank that waits for a CPU delays all other ranks at every all-reduce.",
        )


def _cpus(fact: Host, ranks: int, world: World) -> Severity | None:
    sharing = 1 if fact.cpus_are_per_rank else ranks
    if sharing < 2 or fact.usable_cpus >= sharing:
        return None
    return Severity.WARNING if world.backend == "nccl" else Severity.INFO


@rule("DD226", "omp-threads-oversubscribe-cpus", Consequence.COST, Host)
def omp_threads_oversubscribe_cpus(recording: Recording) -> Iterator[Draft]:
    """OMP_NUM_THREADS gives the ranks of a node more threads than it has CPUs.

    Finds: Reports if OMP_NUM_THREADS is set and several ranks together get more threads than CPUs. Severity is info up
        to twice as many. If it is not set, torchrun gives each of several ranks one thread.
    Why: OpenMP threads spin while they wait for each other, so each rank's work on the CPU slows down.
    Remedy: Set it to the number of CPUs that each rank has.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    for short in shortages(recording, _omp, lambda fact: -_threads_per_cpu(fact)):
        fact, ranks = short.worst.fact, short.ranks
        threads, has = (fact.omp_num_threads or 1) * ranks, fact.usable_cpus
        text = f"{ranks} ranks with OMP_NUM_THREADS={fact.omp_num_threads}"
        title = f"{text} start {threads} threads on the {has:g} CPUs of {{who}}"
        detail = "OpenMP threads spin while they wait, which slows CPU work in every rank."
        saw = Evidence(text=text, value=threads, unit="threads", expected=has, expected_from="one thread per CPU")
        each = max(int(has) // ranks, 1)
        why = f"{int(has)} CPUs shared by {ranks} ranks"
        remedy = Remedy(
            summary=f"Set {each} OpenMP thread{'s' if each > 1 else ''} per rank",
            settings=(Setting(name="OMP_NUM_THREADS", value=str(each), why=why),),
            cost="fewer threads for a rank that alone does heavy CPU work",
            undo="export the previous value",
            proof=Proof(reason="it is read when a library loads, and no trial used it"),
        )
        yield shortage_draft(recording, short, title, saw, remedy, detail=detail)


def _threads_per_cpu(fact: Host) -> float:
    return (fact.omp_num_threads or 0) / fact.usable_cpus


def _omp(fact: Host, ranks: int, _world: World) -> Severity | None:
    ratio = _threads_per_cpu(fact) * ranks
    if ratio <= 1 or ranks < 2 or fact.omp_num_threads == 1 or fact.cpus_are_per_rank:
        return None
    return Severity.WARNING if ratio > thresholds.OMP_THREADS_PER_CPU else Severity.INFO


@rule("DD222", "locked-memory-too-low-for-rdma", Consequence.FAILS, Host)
def locked_memory_too_low_for_rdma(recording: Recording) -> Iterator[Draft]:
    """The node has RDMA devices, but the limit of locked memory is too low to use them.

    Finds: Reports RLIMIT_MEMLOCK below 64 MiB for NCCL ranks on a node with an active RDMA port that NCCL can use.
        Severity is warning if the job has only one node, because it may never use the port.
    Why: NCCL's connections fail: "ibv_reg_mr failed with error Cannot allocate memory".
    Remedy: Set the limit to unlimited where the process gets it from: --ulimit memlock=-1, slurmd, or limits.d.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    for short in shortages(recording, _memlock, lambda fact: fact.memlock_bytes):
        if all_complained(recording, (node.node for node in short.nodes), "DD238"):
            continue
        fact = short.worst.fact
        allowed, devices = fact.memlock_bytes or 0, ", ".join(fact.rdma_devices)
        text, wanted = f"RLIMIT_MEMLOCK {in_units(allowed)} with {devices}", thresholds.RDMA_MEMLOCK_BYTES
        saw = Evidence(text=text, value=allowed, unit="B", expected=wanted, expected_from="unlimited, NCCL user guide")
        title = f"Locked memory on {{who}} is limited to {in_units(allowed)}, too little for RDMA"
        remedy = hardware.locked_memory(short.world.launcher, in_container=fact.in_container)
        detail = f"NCCL locks the buffers of every connection over {devices} in memory, and fails if it cannot."
        yield shortage_draft(recording, short, title, saw, remedy, detail=detail)


def _memlock(fact: Host, _ranks: int, world: World) -> Severity | None:
    unused = world.backend != "nccl" or not fact.rdma_devices or fact.rdma_unused_by is not None
    too_low = fact.memlock_bytes is not None and fact.memlock_bytes < thresholds.RDMA_MEMLOCK_BYTES
    if unused or fact.memlock_is_ignored or not too_low:
        return None
    return Severity.ERROR if world.nnodes > 1 else Severity.WARNING


@rule("DD225", "too-little-memory-for-ranks", Consequence.FAILS, Host)
def too_little_memory_for_ranks(recording: Recording) -> Iterator[Draft]:
    """Free memory is too low even for ranks without a model.

    Finds: Reports if MemAvailable, or the free memory under the control group's limit, is below 206 MiB per rank.
        Severity is warning if ranks have run, and in a prolog, because the memory may belong to another job that is
        ending.
    Why: The kernel kills a rank (exit code -9), and the others wait for it until their timeout.
    Remedy: Stop the processes that use the memory, request more memory, or start fewer ranks.
    See: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
    """
    unlikely = recording.command.is_of_root or recording.first(AllReduceFact) is not None
    severity_of = partial(_memory, Severity.WARNING if unlikely else Severity.ERROR)
    for short in shortages(recording, severity_of, lambda fact: fact.free_memory_bytes, of_the_job=False):
        free = short.worst.fact.free_memory_bytes or 0
        ranks, wanted = short.ranks, thresholds.memory(short.ranks)
        yield shortage_draft(
            recording,
            short,
            f"Free memory on {{who}} is {in_units(free)}, too little for {ranks} ranks",
            Evidence(
                text=f"{in_units(free)} available",
                value=free,
                unit="B",
                expected=wanted,
                expected_from="measured: a bare rank uses 206 MiB",
            ),
            remedy(
                f"Request more memory, start fewer than {ranks} ranks, or stop other programs that use the memory",
                "ps -eo pid,user,rss,comm --sort=-rss | head",
                untried="ddp-doctor cannot get more memory",
            ),
            detail="The kernel kills a rank, and the other ranks wait for it until their timeout.",
        )


def _memory(severity: Severity, fact: Host, ranks: int, _world: World) -> Severity | None:
    free = fact.free_memory_bytes
    return severity if free is not None and free < thresholds.memory(ranks) else None


@rule("DD223", "too-few-open-files", Consequence.RISK, Host)
def too_few_open_files(recording: Recording) -> Iterator[Draft]:
    """The limit of open files is too low for this world size.

    Finds: Reports RLIMIT_NOFILE below 128 plus two per rank of the world. Severity is error below 8 plus one per rank,
        which every rank needs, or if something in this run failed with "Too many open files".
    Why: Every connection, and every tensor that a data loader passes, uses a file. At the limit, a rank fails with "Too
        many open files".
    Remedy: Raise the limit with ulimit -n in the script that starts the job.
    See: https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies
    """
    ran_out = out_of_files(recording)
    for short in shortages(recording, _files, lambda fact: fact.open_files):
        for met in (True, False):
            nodes = [node for node in short.nodes if (node.node in ran_out) is met]
            if nodes:
                worst = min(nodes, key=lambda node: node.fact.open_files or 0)
                severity = Severity.ERROR if met else short.severity
                part = replace(short, severity=severity, nodes=nodes, worst=worst)
                yield _few_files(recording, part, ran_out.get(worst.node))


def _few_files(recording: Recording, short: Shortage, error: str | None) -> Draft:
    allowed, wanted = short.worst.fact.open_files or 0, thresholds.open_files(short.world.world_size)
    saw = Evidence(
        text=f"RLIMIT_NOFILE {allowed}" + (f": {error}" if error else ""),
        value=allowed,
        unit="files",
        expected=wanted,
        expected_from="a bare rank needs 8 plus one per rank (measured), data loaders need more",
    )
    title = (
        f"Open files on {{who}} are limited to {allowed}, but each of {short.world.world_size} ranks may need {wanted}"
    )
    detail = 'A rank at the limit fails with "Too many open files".'
    if error:
        detail = "A part of this run needed more and failed."
    limit = max(wanted, 4096)
    more = remedy(
        f"Raise the limit of open files to {limit} or more before the job starts",
        f"ulimit -n {limit}",
        scope="job",
        undo="start a new shell",
        untried=UNCHANGED,
    )
    return shortage_draft(recording, short, title, saw, more, detail=detail)


def _files(fact: Host, _ranks: int, world: World) -> Severity | None:
    if not is_low(fact, world.world_size):
        return None
    bare = thresholds.OPEN_FILES_BARE + world.world_size
    return Severity.ERROR if (fact.open_files or 0) < bare else Severity.WARNING


@rule("DD240", "loopback-interface-down", Consequence.FAILS, Host)
def loopback_interface_down(recording: Recording) -> Iterator[Draft]:
    """The processes of a host cannot reach each other over the loopback interface.

    Finds: Reports if the interface lo is down, or has no address 127.0.0.1. For a missing address, severity is warning
        with several nodes, because their ranks connect at another address.
    Why: torchrun and its ranks connect at 127.0.0.1, and traffic from a host to any of its own addresses uses lo.
        Without it, the job waits until its timeout.
    Remedy: Run ip link set lo up.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    for problem, group in by_cause(recording.facts(Host), lambda fact: fact.loopback_problem).items():
        elsewhere = recording.several_nodes and "no address" in problem
        yield proved(
            of_nodes(recording, group),
            f"Loopback interface of {{who}} is unusable: {problem}",
            Evidence(text=problem, expected_from="lo is up and has the address 127.0.0.1"),
            by_administrator(
                "Bring up the loopback interface",
                "sudo ip link set lo up",
                "sudo ip address add 127.0.0.1/8 dev lo   # where it has none",
                "ip address show lo",
                undo="sudo ip link set lo down",
            ),
            detail="torchrun and the ranks of a node connect over it, and wait for each other without success.",
            severity=Severity.WARNING if elsewhere else None,
        )


@rule("DD227", "slow-clock-or-busy-host", Consequence.KNOWN, Host)
def slow_clock_or_busy_host(recording: Recording) -> Iterator[Draft]:
    """A slow clock source or a high load slows down the entire host.

    Finds: Reports hpet, acpi_pm or a timer tick as the clock source. Also reports a load of more than two per CPU, with
        the name and pid of the two processes that used most of the CPUs. On a terminal, a load is shown if a measured
        time was evaluated, and otherwise only with -v.
    Why: Measurements are unreliable. A slow clock takes microseconds to read instead of about 20 ns. The kernel
        switches to it if it considers the processor's counter unstable.
    Remedy: Check in the kernel log why tsc was rejected ("Marking clocksource unstable"). Stop the processes that keep
        the CPUs busy.
    See: https://docs.kernel.org/timers/timekeeping.html
    """
    detail = "The job may be faster than these measurements."
    for source, group in by_cause(recording.facts(Host), _slow_clock).items():
        yield proved(
            of_nodes(recording, group),
            f"Measurements on {{who}} may be too slow: reading the clock takes long (clock source {source})",
            Evidence(text=f"clock source {source}", expected_from="tsc or a virtual clock"),
            detail=detail,
        )
    fast_clocks = [node for node in recording.facts(Host) if _slow_clock(node.fact) is None]
    busy = [node for node in fast_clocks if node.fact.load_per_cpu > thresholds.LOAD_PER_CPU]
    if busy:
        fact, load = busy[0].fact, "more than two processes per CPU ran or waited"
        if len(busy) == 1:
            load = f"load {fact.load_1min or 0:.3g} on {fact.host_cpus or fact.cpus} CPUs"
        yield proved(
            of_nodes(recording, busy),
            f"Measurements on {{who}} may be too slow: {load}",
            [_busiest(recording, node) for node in busy[:LINES_OF_EVIDENCE]],
            detail=detail,
        )


def _slow_clock(fact: Host) -> str | None:
    return fact.clock_source if fact.clock_source in thresholds.SLOW_CLOCK_SOURCES else None


def _busiest(recording: Recording, node: FactAt[Host]) -> Evidence:
    names = [f"{each.name} (pid {each.pid}, {each.cpus:.2g} CPUs)" for each in node.fact.busiest]
    at = f" on {host(recording, node.node)}" if recording.several_nodes else ""
    return Evidence(
        text=f"busiest{at}: {name_list(names)}" if names else f"in the last minute{at}",
        value=round(node.fact.load_per_cpu, 1),
        unit=LOAD,
        expected_from=f"load of at most {thresholds.LOAD_PER_CPU:g} per CPU",
    )
