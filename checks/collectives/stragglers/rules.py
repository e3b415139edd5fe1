"""DD660-DD665: ranks that compute, run, read or exchange more slowly than their peers, and inconclusive comparisons."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median, median_low

from ddp_doctor.facts.collectives import Sample, StragglersFact
from ddp_doctor.knowledge import stragglers
from ddp_doctor.knowledge.severity import of_slowdown
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_administrator, by_operator
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, likely, possible, proved
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, rank_at, rank_culprits, rank_of, ranks_at

#: The kinds of work that are timed. A rank with work may be stopped by a quota, wait for a CPU, or be stopped by
#: something else.
PRODUCTS, QUOTA, WAITS, STOPS, EXCHANGE, READS = (
    "products of the same matrices",
    "programs under its CPU quota",
    "programs that share a CPU",
    "programs",
    "exchanges with both neighbors",
    "reads of ",  # followed by "large files" and so on
)
LOSSES = (QUOTA, WAITS, STOPS)
_LEAST = 1e-3


@dataclass(frozen=True)
class Slow:
    """A rank that is slower than the usual one. ``is_sure``: beyond chance, nearly always, and among enough ranks."""

    rank: FactAt[StragglersFact]
    work: str
    factor: float  # its time divided by the usual rank's, by medians
    spread: float  # 1.4826 MAD of all samples of all compared ranks, as a share of the usual value
    slow_samples: Sequence[int]  # their numbers
    samples: int
    is_sure: bool = False


@once_a_recording
def slow_ranks(recording: Recording) -> Sequence[Slow]:
    """Return the ranks that are much slower than the usual one, sure and unsure ones, by kind of work."""
    ranks = recording.facts(StragglersFact)
    costs = [
        ((work, rank.fact.model if work == PRODUCTS else ""), (rank_of(rank), cost))
        for rank in ranks
        for sample in rank.fact.samples
        for work, cost in _costs(sample).items()
    ]
    costs += [((EXCHANGE, ""), of_rank) for of_rank in _exchange_costs(ranks)]
    by_rank = {rank_of(rank): rank for rank in ranks}
    return [
        slow
        for (work, _), of_ranks in grouped(costs).items()
        for slow in _compared(by_rank, work, grouped(of_ranks), _least(recording, work))
    ]


def _costs(sample: Sample) -> dict[str, float]:
    """Return the cost of one sample by kind of work, each in its own unit."""
    # Kernels may or may not count a quota's stops as waits. A host's load does not change the share of STOPS in the
    # rest.
    stopped = min(sample.throttled_share or 0.0, sample.taken_share)
    waited = min(max((sample.waited_share or 0.0) - stopped, 0.0), sample.taken_share - stopped)
    left, had = max(1 - stopped, _LEAST), max(1 - stopped - waited, _LEAST)
    reads = {READS + name: 1 / rate for name, rate in sample.read_bytes_per_s.items() if rate}
    return {
        PRODUCTS: 1 / max(sample.products_per_s, _LEAST),
        QUOTA: 1 / left,
        WAITS: left / had,
        STOPS: had / max(1 - sample.taken_share, _LEAST),
        **reads,
    }


def _exchange_costs(ranks: Sequence[FactAt[StragglersFact]]) -> Iterator[tuple[int, float]]:
    """Yield for each sample how many times slower than usual the faster of a rank's two exchanges was.

    Exchanges within a machine are compared with others within machines, exchanges across machines with others across.
    """
    machine = {rank_of(rank): rank.fact.machine for rank in ranks}
    for at_once in zip(*(rank.fact.samples for rank in ranks), strict=False):
        rates = [
            (machine.get(peer) == rank.fact.machine, rank_of(rank), rate)
            for rank, sample in zip(ranks, at_once, strict=True)
            for peer, rate in sample.exchanged_gb_per_s.items()
            if len(sample.exchanged_gb_per_s) > 1 and rate
        ]
        usual = {kind: median(of_kind) for kind, of_kind in grouped((kind, rate) for kind, _, rate in rates).items()}
        costs = grouped((rank, usual[kind] / rate) for kind, rank, rate in rates)
        yield from ((rank, min(both)) for rank, both in costs.items())


def _least(recording: Recording, work: str) -> float:
    if work == EXCHANGE:
        return stragglers.EXCHANGE_SLOWER_ON_NCCL if recording.on_nccl else stragglers.EXCHANGE_SLOWER
    return stragglers.READS_SLOWER if work.startswith(READS) else stragglers.SLOWER


def _compared(
    ranks: Mapping[int, FactAt[StragglersFact]], work: str, costs: Mapping[int, Sequence[float]], least: float
) -> Iterator[Slow]:
    costs = {rank: values for rank, values in costs.items() if len(values) >= stragglers.FEWEST_SAMPLES}
    if len(costs) < 2:
        return
    usual = median_low(median(values) for values in costs.values())
    spread = stragglers.OF_MAD * median(abs(value - usual) for values in costs.values() for value in values) / usual
    at_once = [median_low(values) for values in zip(*costs.values(), strict=False)]
    found = []
    for rank, values in costs.items():
        slow = [at for at, (value, often) in enumerate(zip(values, at_once, strict=False)) if value >= least * often]
        if slow and median(values) >= least * usual:
            found.append(Slow(ranks[rank], work, median(values) / usual, spread, slow, len(at_once)))
    lasting = [slow for slow in found if len(slow.slow_samples) >= stragglers.IN_SAMPLES * slow.samples]
    far_off = [slow for slow in lasting if slow.factor >= 1 + stragglers.SPREADS * spread]
    if work == WAITS:  # ranks that share CPUs share other programs too, so it is chance which one waits longer
        places = {rank: (ranks[rank].fact.machine, ranks[rank].fact.cpus) for rank in costs}
        all_there, slow_there = Counter(places.values()), Counter(places[rank_of(slow.rank)] for slow in far_off)
        far_off = [slow for slow in far_off if 2 * slow_there[at := places[rank_of(slow.rank)]] > all_there[at]]
    if work == EXCHANGE or work.startswith(READS):  # both are slower on a rank that waits for a CPU
        far_off = [slow for slow in far_off if slow.factor * _ran(slow.rank.fact) >= least]
    if len(costs) < stragglers.FEWEST_TO_JUDGE or 2 * len(far_off) >= len(costs):
        far_off = []
    for slow_rank in found:
        by_quota = work == QUOTA and slow_rank in lasting  # certain without a comparison
        yield replace(slow_rank, is_sure=slow_rank in far_off or by_quota)


def _ran(fact: StragglersFact) -> float:
    """Return the share of time that a rank did not wait for a CPU."""
    return 1 - median(sample.waited_share or 0.0 for sample in fact.samples)


#: The texts about a rank's samples: why it is slow, what to do, and what was measured.
Shown = tuple[str, Remedy, str]

_QUOTA = by_administrator(
    "Raise the CPU quota: --cpus in Docker, resources.limits.cpu in Kubernetes, CPUQuota= of a systemd unit",
    "docker update --cpus=8 CONTAINER; systemctl set-property UNIT CPUQuota=",
    cost="less for other programs",
    undo="restore the previous quota",
)
_look = partial(by_operator, cost="one minute of this node")
_OTHERS = by_operator(
    "Stop or move other programs on its CPUs, or reserve CPUs for the job: sbatch --exclusive, a cpuset",
    "ps -eLo pid,psr,cls,rtprio,pcpu,comm --sort=-pcpu | head; taskset -cp CPUS PID",
    cost="the stopped or moved programs lose these CPUs; an exclusive job waits longer for nodes",
    undo="restart the other programs, or move them back",
)
_STOPS = _look(
    "Find out what stops it: SIGSTOP, a debugger, an oversold virtual machine host, firmware, interrupts",
    "grep -e State -e TracerPid /proc/PID/status; vmstat 1 5   # the column st",
    "sudo rtla osnoise top -d 10s; sudo hwlatdetect --duration=10",
)
_COMPUTE = _look(
    "Compare clocks, power profile and memory placement with a normal host; use --only gpu_speed for a GPU",
    "cpupower frequency-info; numactl --show; lscpu; free -h",
)
_DATA = by_operator(
    "Compare mount, cache and server of the data with a normal host, or copy the data to a local disk",
    "findmnt -T PATH; ls -ld PATH; nfsstat -m; nfsiostat 1 3; iostat -x 1 3",
    cost="one minute of this node; time and disk space for the copy",
    undo="remove the copy",
)
_EXCHANGE = _look(
    "Test the paths between all ranks and nodes, then the network interfaces of this node",
    "ddp-doctor run --only connectivity,p2p --level thorough; ethtool -S INTERFACE",
)


def _named(recording: Recording, *works: str) -> list[Slow]:
    """Return the ranks reported for any of these kinds of work, each for the work in which it is slowest."""
    sure = grouped((rank_of(slow.rank), slow) for slow in slow_ranks(recording) if slow.is_sure)
    ours = [[slow for slow in of_rank if slow.work.startswith(works)] for of_rank in sure.values()]
    return sorted((max(of, key=lambda slow: slow.factor) for of in ours if of), key=lambda slow: rank_of(slow.rank))


def _drafts(recording: Recording, slow: list[Slow], shown: Callable[[Slow], Shown]) -> Iterator[Draft]:
    """Yield one finding for each kind of work and reason."""
    for (work, reason, remedy), group in grouped(((one.work, *shown(one)[:2]), one) for one in slow).items():
        ranks, worst = [rank_of(one.rank) for one in group], max(one.factor for one in group)
        times = f"{'up to ' if len(group) > 1 else ''}{worst:.1f} times as long"
        yield (proved if remedy is _QUOTA else likely)(
            rank_culprits(recording, StragglersFact, ranks),
            f"{capital(ranks_at(recording, ranks))}: {work} take {times} as on a typical rank ({reason})",
            [_evidence(recording, one, shown(one)[2]) for one in group[:LINES_OF_EVIDENCE]],
            remedy,
            detail="In DDP, every rank waits for the slowest rank in every step.",
            severity=of_slowdown(worst),
        )


def _evidence(recording: Recording, slow: Slow, seen: str) -> Evidence:
    since_s = slow.rank.fact.samples[slow.slow_samples[0]].at_s
    return Evidence(
        text=f"{rank_at(recording, rank_of(slow.rank))}: {seen}; slow in"
        f" {len(slow.slow_samples)} of {slow.samples} samples, first after {since_s:.0f}"
        f" s; spread over all ranks {slow.spread:.0%}",
        value=round(slow.factor, 2),
        unit="times the usual time",
    )


@rule("DD660", "rank-computes-slowly", Consequence.SLOWER, StragglersFact, explained_by=("DD801", "DD805"))
def rank_computes_slowly(recording: Recording) -> Iterator[Draft]:
    """A rank's device multiplies the same matrices more slowly than identical devices.

    Finds: Among three or more ranks with the same CPU or GPU model, reports ranks that take 1.25 times as long as the
        typical rank, beyond four times the spread of all samples, in four of five samples. Severity is error from three
        times. On a CPU, the processor time is compared, so that other programs do not count (DD661).
    Why: Every rank waits for the slowest one in every step.
    Remedy: Compare clocks, power profile and NUMA placement with a typical host.
    See: docs/explanation/measurements.md
    """
    yield from _drafts(recording, _named(recording, PRODUCTS), _products)


def _products(slow: Slow) -> Shown:
    fact = slow.rank.fact
    rate = median(sample.products_per_s for sample in fact.samples)
    reason = "slow GPU" if fact.device.startswith("cuda") else "slow CPU or memory"
    return reason, _COMPUTE, f"{rate:.3g} products/s, on CPUs of NUMA {name_list(fact.numa_nodes) or 'nodes unknown'}"


@rule("DD661", "rank-loses-processor-time", Consequence.SLOWER, StragglersFact)
def rank_loses_processor_time(recording: Recording) -> Iterator[Draft]:
    """A rank is taken off its CPU while it has work.

    Finds: Among three or more ranks, reports ranks on which a loop that only reads the clock is interrupted so often
        that it takes 1.25 times as long as on the typical rank, beyond four times the spread of all samples, in four of
        five samples. A rank that a CPU quota stops each time is named even with only one other rank. Ranks that share
        their CPUs with typical ranks are not named for waiting, because chance decides which of them waits. Severity is
        error from three times.
    Why: Every rank waits for the slowest one in every step.
    Remedy: Depending on the cause, raise the quota, move the other processes or the virtual machine, or find what stops
        the rank.
    See: https://docs.kernel.org/scheduler/sched-bwc.html
        https://docs.kernel.org/trace/osnoise-tracer.html
    """
    yield from _drafts(recording, _named(recording, *LOSSES), _losses)


def _losses(slow: Slow) -> Shown:
    fact, samples = slow.rank.fact, slow.rank.fact.samples
    taken = median(sample.taken_share for sample in samples)
    waited = median(sample.waited_share or 0.0 for sample in samples)
    stopped = median(sample.throttled_share or 0.0 for sample in samples)
    others = "".join(f"; {each.name} (pid {each.pid}) takes {each.cpus:.0%} of a CPU" for each in fact.busiest)
    seen = (
        f"{taken:.0%} of a loop's time is lost, at most"
        f" {max(sample.longest_gap_s for sample in samples) * 1e3:.0f} ms at once; ready but"
        f" waiting {waited:.0%}, stopped by its quota {stopped:.0%}{others}"
    )
    if slow.work == QUOTA:
        return f"stopped by a CPU quota{f' of {fact.quota_cpus:g} processors' if fact.quota_cpus else ''}", _QUOTA, seen
    if slow.work == WAITS:
        return "waiting for a CPU that other programs use", _OTHERS, seen
    return "stopped, but not by a quota or another process", _STOPS, seen


@rule("DD662", "rank-reads-data-slowly", Consequence.SLOWER, StragglersFact)
def rank_reads_data_slowly(recording: Recording) -> Iterator[Draft]:
    """A rank reads the data of --data more slowly than the others.

    Finds: Among three or more ranks, reports ranks whose reads of a large file, of small pieces, or with four workers
        take twice as long as on the typical rank, beyond four times the spread of all samples, in four of five samples.
        Severity is error from three times. Ranks that lose as much processor time (DD661), or that waited as long for a
        CPU, are skipped.
    Why: A rank that waits for its batch makes all others wait for it.
    Remedy: Compare the mount, its cache and its server with a typical host's.
    See: docs/how-to/many-nodes.md
    """
    slowed = {rank_of(slow.rank): slow.factor for slow in _named(recording, *LOSSES)}
    slow = [slow for slow in _named(recording, READS) if slow.factor >= 2 * slowed.get(rank_of(slow.rank), 0.0)]
    yield from _drafts(recording, slow, _reads)


def _reads(slow: Slow) -> Shown:
    rates = grouped(rate for sample in slow.rank.fact.samples for rate in sample.read_bytes_per_s.items())
    seen = name_list([f"{name} {median(of_name) / 1e6:.3g} MB/s" for name, of_name in rates.items()])
    return "slow mount or disk", _DATA, seen


@rule("DD663", "data-cannot-be-read", Consequence.FAILS, StragglersFact)
def data_cannot_be_read(recording: Recording) -> Iterator[Draft]:
    """The path of --data is missing or not readable on some ranks, or reads of it hang.

    Finds: Reports ranks on which the path of --data does not exist, is not a file or directory, is empty, or is not
        readable, and reads that did not end within 8 s. If every rank fails, it is a usage error.
    Why: The job fails or hangs on these ranks, and all other ranks wait for them.
    Remedy: Mount the data on these hosts in the same way as on the others.
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
            detail="The job fails or hangs there.",
        )


@rule("DD664", "rank-exchanges-slowly", Consequence.SLOWER, StragglersFact)
def rank_exchanges_slowly(recording: Recording) -> Iterator[Draft]:
    """A rank exchanges data slowly with both of its neighbors, and its host shows no reason.

    Finds: Among three or more ranks, reports ranks whose exchanges with both neighbors of the ring take twice as long
        (four times with NCCL) as the typical exchange of their kind, within a machine or across machines, beyond four
        times the spread of all samples, in four of five samples. Severity is error from three times. Ranks that another
        rule of this check names, or that waited as long for a CPU, are skipped.
    Why: A collective passes through every rank, and is as slow as the slowest one.
    Remedy: Test its paths with the checks connectivity and p2p, then its network interfaces.
    See: docs/explanation/measurements.md
    """
    named = {rank_of(slow.rank) for slow in _named(recording, PRODUCTS, *LOSSES, READS)}
    slow = [slow for slow in _named(recording, EXCHANGE) if rank_of(slow.rank) not in named]
    yield from _drafts(recording, slow, _exchanges)


def _exchanges(slow: Slow) -> Shown:
    rates = grouped(pair for sample in slow.rank.fact.samples for pair in sample.exchanged_gb_per_s.items())
    seen = [f"{median(of_peer):.3g} GB/s with rank {peer}" for peer, of_peer in sorted(rates.items())]
    return "no other part of the rank is clearly slow", _EXCHANGE, name_list(seen)


@rule("DD665", "no-straggler-is-sure", Consequence.KNOWN, StragglersFact)
def no_straggler_is_sure(recording: Recording) -> Iterator[Draft]:
    """Ranks took longer, but too few ranks or too much variation prevent naming one.

    Finds: Reports ranks whose median is as far off as a straggler's, but not in four of five samples, or within four
        times the spread of all samples. Also reports two ranks that differ, and cases with as many slow ranks as
        others.
    Why: A busy machine slows different ranks at different times, so a rank named on this basis may be healthy.
    Remedy: Run it again on an idle machine, or with three or more ranks.
    See: docs/explanation/measurements.md
    """
    named = {rank_of(slow.rank) for slow in slow_ranks(recording) if slow.is_sure}
    if unsure := [slow for slow in slow_ranks(recording) if rank_of(slow.rank) not in named]:
        ranks, works = [rank_of(slow.rank) for slow in unsure], list(dict.fromkeys(slow.work for slow in unsure))
        yield possible(
            NOBODY,
            f"{capital(ranks_at(recording, ranks))} took longer than usual for"
            f" {name_list(works)}: the slow rank is unknown",
            [_evidence(recording, slow, slow.work) for slow in unsure[:LINES_OF_EVIDENCE]],
        )
