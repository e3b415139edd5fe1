"""DD660-DD666: ranks that compute, run, read or exchange more slowly than their peers, and what was not told apart."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from ddp_doctor.checks.collectives.stragglers import comparison
from ddp_doctor.checks.collectives.stragglers.comparison import LOSSES, READS, Slow, since_s, slow_ranks
from ddp_doctor.facts.collectives import StragglersFact
from ddp_doctor.knowledge import stragglers
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_administrator, by_operator
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, likely, possible, proved
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, rank_at, rank_culprits, rank_of, ranks_at

#: Why a rank is slow, and what to do; given the rank and what its samples show.
Why = Callable[[Recording, Slow], tuple[str, Remedy]]

_QUOTA = by_administrator(
    "Raise the CPU quota: --cpus in Docker, resources.limits.cpu in Kubernetes, CPUQuota= of a systemd unit",
    "docker update --cpus=8 CONTAINER; systemctl set-property UNIT CPUQuota=",
    cost="others get less of it",
    undo="set the former quota again",
)
_look = partial(by_operator, cost="a minute of this node")
_OTHERS = _look(
    "End or move what else runs on its CPUs, or give the job CPUs of its own: sbatch --exclusive, a cpuset",
    "ps -eLo pid,psr,cls,rtprio,pcpu,comm --sort=-pcpu | head; taskset -cp 8-15 PID",
)
_STOPS = _look(
    "Look for what stops it: SIGSTOP or a debugger, a host of virtual machines that is oversold, firmware, interrupts",
    "grep -e State -e TracerPid /proc/PID/status; vmstat 1 5   # the column st",
    "sudo rtla osnoise top -d 10s; sudo hwlatdetect --duration=10",
)
_COMPUTE = _look(
    "Compare clocks, power profile and memory placement with a usual host, for a GPU with --only gpu_speed",
    "cpupower frequency-info; numactl --show; lscpu; free -h",
)
_DATA = _look(
    "Compare mount, cache and server of the data with those on a usual host, or copy the data to a local disk",
    "findmnt -T PATH; ls -ld PATH; nfsstat -m; nfsiostat 1 3; iostat -x 1 3",
)
_EXCHANGE = _look(
    "Test the paths between all ranks and nodes, then the network interfaces of this one",
    "ddp-doctor run --only connectivity,p2p --level thorough; ethtool -S INTERFACE",
)


def _named(recording: Recording, *works: str) -> list[Slow]:
    """The ranks named for any of these, each for the work that it is slowest in."""
    sure = grouped((rank_of(slow.rank), slow) for slow in slow_ranks(recording) if slow.is_sure)
    ours = [[slow for slow in of_rank if slow.work.startswith(works)] for of_rank in sure.values()]
    return sorted((max(of, key=lambda slow: slow.factor) for of in ours if of), key=lambda slow: rank_of(slow.rank))


def _drafts(recording: Recording, slow: list[Slow], why: Why, seen: Callable[[Slow], str]) -> Iterator[Draft]:
    """One finding for each work and reason; ``seen`` is what a rank's samples show."""
    for (work, (reason, remedy)), group in grouped(((one.work, why(recording, one)), one) for one in slow).items():
        ranks, worst = [rank_of(one.rank) for one in group], max(one.factor for one in group)
        times = f"{'up to ' if len(group) > 1 else ''}{worst:.1f} times as long"
        yield (proved if remedy is _QUOTA else likely)(
            rank_culprits(recording, StragglersFact, ranks),
            f"{capital(ranks_at(recording, ranks))}: {work} take {times} as on the usual rank: {reason}",
            [_evidence(recording, one, seen(one)) for one in group[:LINES_OF_EVIDENCE]],
            remedy,
            detail="In DDP every rank waits for the slowest one, in every step.",
            severity=Severity.ERROR if worst >= stragglers.MUCH_SLOWER else Severity.WARNING,
        )


def _evidence(recording: Recording, slow: Slow, seen: str) -> Evidence:
    return Evidence(
        text=f"{rank_at(recording, rank_of(slow.rank))}: {seen}; slow in {len(slow.slow_samples)} of {slow.samples} "
        f"samples, first {since_s(recording, slow):.0f} s after the run began; spread of all ranks' {slow.spread:.0%}",
        value=round(slow.factor, 2),
        unit="times the usual time",
    )


@rule("DD660", "rank-computes-slowly", Severity.WARNING, StragglersFact, explained_by=("DD801", "DD805"))
def rank_computes_slowly(recording: Recording) -> Iterator[Draft]:
    """A rank whose device multiplies the same matrices more slowly than its equals.

    Finds: Among three or more ranks with the same model of CPU or GPU, those that take 1.25 times as long as the usual
        one, beyond four spreads of all samples, in four of five samples; an error from three times on. On a CPU the
        processor time is compared, so that whatever else runs there does not count (DD661).
    Why: Every rank waits for the slowest in every step.
    Remedy: By what differs: the clock of the CPU, pages read back from a disk, memory of another NUMA node.
    See: docs/explanation/measurements.md
    """
    yield from _drafts(recording, _named(recording, comparison.PRODUCTS), _why_computing, _products)


def _products(slow: Slow) -> str:
    return f"{median(sample.products_per_s for sample in slow.rank.fact.samples):.3g} products/s"


def _why_computing(recording: Recording, slow: Slow) -> tuple[str, Remedy]:
    fact = slow.rank.fact
    own = [sample.mhz / 1e3 for sample in fact.samples if sample.mhz]
    ranks = recording.facts(StragglersFact)
    everyone = [sample.mhz / 1e3 for rank in ranks for sample in rank.fact.samples if sample.mhz]
    reason = "nothing that its host shows says why"
    if fact.device.startswith("cuda"):
        reason = "its GPU is slow"
    elif own and median(own) < stragglers.CLOCK_SHARE * median(everyone):
        reason = f"its CPU runs at {median(own):.1f} GHz, the usual one at {median(everyone):.1f}"
    elif sum(bool(sample.major_faults) for sample in fact.samples) >= stragglers.IN_SAMPLES * len(fact.samples):
        reason = "its memory is read back from a disk meanwhile"
    elif fact.is_memory_far:
        reason = "its CPUs are of another NUMA node than its memory"
    return reason, _COMPUTE


@rule("DD661", "rank-loses-processor-time", Severity.WARNING, StragglersFact)
def rank_loses_processor_time(recording: Recording) -> Iterator[Draft]:
    """A rank that is taken off its CPU while it has work.

    Finds: Among three or more ranks, those on which a loop that only reads the clock stands still so often that it
        takes 1.25 times as long as on the usual rank, beyond four spreads of all samples, in four of five samples; one
        that a CPU quota stops each time is named beside one other rank, too. Ranks that share their CPUs with usual
        ones are not named for waits: who waits there is chance. An error from three times on.
    Why: Every rank waits for the slowest in every step.
    Remedy: By who takes it: raise the quota, move the other processes or the virtual machine, find what stops it.
    See: https://docs.kernel.org/scheduler/sched-bwc.html
        https://docs.kernel.org/trace/osnoise-tracer.html
    """
    yield from _drafts(recording, _named(recording, *LOSSES), _who_takes_it, _gaps)


def _gaps(slow: Slow) -> str:
    fact, samples = slow.rank.fact, slow.rank.fact.samples
    taken = median(sample.taken_share for sample in samples)
    waited = median(sample.waited_share or 0.0 for sample in samples)
    stopped = median(sample.throttled_share or 0.0 for sample in samples)
    others = ", ".join(f"{each.name} (pid {each.pid}) takes {each.cpus:.0%} of a CPU" for each in fact.busiest)
    gap_s, late_s = max(sample.longest_gap_s for sample in samples), median(sample.late_s for sample in samples)
    return (
        f"{taken:.0%} of a loop's time is taken, {gap_s * 1e3:.0f} ms at most; {waited:.0%} it was ready and waited, "
        f"{stopped:.0%} its control group was stopped; a sleep ends {late_s * 1e3:.1f} ms late; "
        f"{fact.steal_share:.0%} steal, CPU pressure {fact.pressure_share:.0%}{'; ' if others else ''}{others}"
    )


def _who_takes_it(_recording: Recording, slow: Slow) -> tuple[str, Remedy]:
    fact = slow.rank.fact
    if slow.work == comparison.QUOTA:
        return f"a CPU quota{f' of {fact.quota_cpus:g} processors' if fact.quota_cpus else ''} stops it", _QUOTA
    if slow.work == comparison.WAITS:
        return "it waits for a CPU that others use", _OTHERS
    lost = median(sample.taken_share for sample in fact.samples)
    if fact.steal_share >= stragglers.REASON_SHARE * lost:
        return "the hypervisor takes its CPUs for others", _STOPS
    return "it is stopped, and neither a quota nor another process does it", _STOPS


@rule("DD662", "rank-reads-data-slowly", Severity.WARNING, StragglersFact)
def rank_reads_data_slowly(recording: Recording) -> Iterator[Draft]:
    """A rank that reads what --data names more slowly than the others.

    Finds: Among three or more ranks, those whose reads of a large file, of small pieces, or with four workers take
        twice as long as on the usual rank, beyond four spreads of all samples, in four of five samples; an error from
        three times on. Ranks that lose as much processor time (DD661) are left out.
    Why: A rank that waits for its batch makes all others wait for it.
    Remedy: Compare the mount, its cache and its server with those of a usual host.
    See: docs/how-to/many-nodes.md
    """
    slowed = {rank_of(slow.rank): slow.factor for slow in _named(recording, *LOSSES)}
    slow = [slow for slow in _named(recording, READS) if slow.factor >= 2 * slowed.get(rank_of(slow.rank), 0.0)]
    yield from _drafts(recording, slow, _why_reading, _rates)


def _rates(slow: Slow) -> str:
    fact = slow.rank.fact
    rates = grouped(rate for sample in fact.samples for rate in sample.read_bytes_per_s.items())
    parts = [f"{name} {median(of_name) / 1e6:.3g} MB/s" for name, of_name in rates.items()]
    return f"{', '.join(parts)} (page cache avoided by {fact.data_cache})"


def _why_reading(recording: Recording, slow: Slow) -> tuple[str, Remedy]:
    own = slow.rank.fact.data_file_system
    others = sorted({rank.fact.data_file_system for rank in recording.facts(StragglersFact)} - {own, ""})
    if own and others:
        return f"the data is on {own} there, elsewhere on {name_list(others)}", _DATA
    return f"its file system{f' ({own})' if own else ''} is slow there", _DATA


@rule("DD663", "data-cannot-be-read", Severity.ERROR, StragglersFact)
def data_cannot_be_read(recording: Recording) -> Iterator[Draft]:
    """What --data names is missing on some ranks, may not be read there, or its reads hang.

    Finds: Ranks on which the path of --data does not exist, is no file or folder, is empty, or may not be read; and
        reads that did not end within 8 s. Where every rank fails, it is a usage error.
    Why: The job fails or stands still there, and all other ranks wait for it.
    Remedy: Mount the data there as on the other hosts.
    See: docs/how-to/many-nodes.md
    """
    facts = recording.facts(StragglersFact)
    problems = grouped((rank.fact.data_problem, rank_of(rank)) for rank in facts if rank.fact.data_problem)
    for problem, ranks in problems.items():
        yield proved(
            rank_culprits(recording, StragglersFact, ranks),
            f"{capital(ranks_at(recording, ranks))} cannot read the data: {problem}",
            Evidence(text=f"--data {recording.options.data}: {problem}"),
            _DATA,
            detail="The job would fail or stand still there.",
        )


@rule("DD664", "rank-exchanges-slowly", Severity.WARNING, StragglersFact)
def rank_exchanges_slowly(recording: Recording) -> Iterator[Draft]:
    """A rank that exchanges data slowly with both of its neighbours, for no reason that its host shows.

    Finds: Among three or more ranks, those whose exchanges with both neighbours of the ring take twice as long as the
        usual one of their kind, within a machine or across (four times with NCCL), beyond four spreads of all samples,
        in four of five samples; an error from three times on. Ranks that another rule of this check names are left out.
    Why: A collective passes through every rank, and is as slow as the slowest.
    Remedy: Test its paths with connectivity and p2p, then its network interfaces.
    See: docs/explanation/measurements.md
    """
    named = {rank_of(slow.rank) for slow in _named(recording, comparison.PRODUCTS, *LOSSES, READS)}
    slow = [slow for slow in _named(recording, comparison.EXCHANGE) if rank_of(slow.rank) not in named]
    yield from _drafts(recording, slow, _why_exchanging, _exchanges)


def _why_exchanging(recording: Recording, _slow: Slow) -> tuple[str, Remedy]:
    machines = {rank.fact.machine for rank in recording.facts(StragglersFact)}
    untold = "" if len(machines) > 1 else "; all share a machine: no network between machines was tested"
    return f"nothing else of it is slow for sure{untold}", _EXCHANGE


def _exchanges(slow: Slow) -> str:
    rates = grouped(pair for sample in slow.rank.fact.samples for pair in sample.exchanged_gb_per_s.items())
    return ", ".join(f"{median(of_peer):.3g} GB/s with rank {peer}" for peer, of_peer in sorted(rates.items()))


@rule("DD665", "no-straggler-is-sure", Severity.INFO, StragglersFact)
def no_straggler_is_sure(recording: Recording) -> Iterator[Draft]:
    """Ranks that took longer, with too few ranks or too much chance to name one.

    Finds: Ranks whose median is as far off as a straggler's, but not in four of five samples, or within four spreads of
        all samples; two ranks that differ; and as many slow ones as others.
    Why: A busy machine slows now this rank and now that one: whoever is named by that may be innocent.
    Remedy: Run it again on an idle machine, or with three ranks and more.
    See: docs/explanation/measurements.md
    """
    named = {rank_of(slow.rank) for slow in slow_ranks(recording) if slow.is_sure}
    if unsure := [slow for slow in slow_ranks(recording) if rank_of(slow.rank) not in named]:
        ranks, works = (
            [rank_of(slow.rank) for slow in unsure],
            list({slow.work.partition(",")[0]: 0 for slow in unsure}),
        )
        yield possible(
            NOBODY,
            f"{capital(ranks_at(recording, ranks))} took longer for {name_list(works)} than usual; unsure who is slow",
            [_evidence(recording, slow, slow.work) for slow in unsure[:LINES_OF_EVIDENCE]],
        )


@rule("DD666", "ranks-on-different-processors", Severity.INFO, StragglersFact)
def ranks_on_different_processors(recording: Recording) -> Iterator[Draft]:
    """Ranks with different models of CPU or GPU, whose speed was not compared with each other's.

    Finds: More than one model among the devices that the ranks compute on.
    Why: A slower model is no straggler, and yet every rank waits for it in every step.
    Remedy: Give the job nodes of one kind.
    See: docs/explanation/measurements.md
    """
    models = grouped((rank.fact.model, rank_of(rank)) for rank in recording.facts(StragglersFact))
    if len(models) > 1:
        lines = [Evidence(text=f"{model}: {ranks_at(recording, ranks)}") for model, ranks in models.items()]
        yield proved(NOBODY, f"The ranks compute on {len(models)} models of processors, each compared by itself", lines)
