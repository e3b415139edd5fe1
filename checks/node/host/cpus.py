"""DD224, DD226, DD227: too few CPUs, too many threads, or a host that is slow altogether."""

from collections.abc import Iterator

from ddp_doctor.checks.node.host.shortages import shortage_draft, shortages
from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Proof, Remedy, Setting
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import by_cause, of_nodes


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
    for short in shortages(recording, _cpus, lambda fact: fact.usable_cpus):
        fact, ranks = short.worst.fact, short.ranks
        quota = "no quota" if fact.cpu_quota_cpus is None else f"a quota of {fact.cpu_quota_cpus:g}"
        text, has = f"{fact.cpus} CPUs in the affinity mask, {quota}", fact.usable_cpus
        title = f"{ranks} ranks share {has:g} CPUs on {{who}}"
        detail = "A rank that waits for its turn on a CPU makes all others wait at every all-reduce."
        saw = Evidence(text=text, value=has, unit="CPUs", expected=ranks, expected_from="one for each rank")
        yield shortage_draft(recording, short, title, saw, _more_cpus(ranks), detail=detail)


def _cpus(fact: Host, ranks: int, world: World) -> Severity | None:
    sharing = 1 if fact.cpus_are_per_rank else ranks
    if sharing < 2 or fact.usable_cpus >= sharing:
        return None
    return Severity.WARNING if world.backend == "nccl" else Severity.INFO


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
    for short in shortages(recording, _omp, lambda fact: -_threads_per_cpu(fact)):
        fact, ranks = short.worst.fact, short.ranks
        threads, has = (fact.omp_num_threads or 1) * ranks, fact.usable_cpus
        text = f"OMP_NUM_THREADS={fact.omp_num_threads} and {ranks} ranks"
        title = f"{text} start {threads} threads on {{who}} for {has:g} CPUs"
        detail = "Threads that wait for each other spin, so work on the CPU slows down in every rank."
        saw = Evidence(
            text=text, value=threads, unit="threads", expected=has, expected_from="one thread for each CPU"
        )
        yield shortage_draft(recording, short, title, saw, _fewer_threads(ranks, int(has)), detail=detail)


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
        saw = Evidence(text=fault, expected_from="an idle host with tsc or a virtual clock")
        detail = "What is measured here may be slower than the job will be."
        yield proved(of_nodes(recording, group), f"Slow host {{who}}: {fault}", saw, detail=detail)


def _slowed(fact: Host) -> str | None:
    if fact.clock_source in thresholds.SLOW_CLOCK_SOURCES:
        return f"the clock source is {fact.clock_source}"
    per_cpu = (fact.load_1min or 0) / (fact.host_cpus or fact.cpus)
    return "other work keeps its CPUs busy" if per_cpu > thresholds.LOAD_PER_CPU else None


def _more_cpus(ranks: int) -> Remedy:
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


def _fewer_threads(ranks: int, cpu_count: int) -> Remedy:
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
