"""All ranks, again and again: how often do they fail to meet and to reduce, and do they become slower?

Raw input, of each repeat (RepeatsFact):

    {"round": 6, "nodes": [0, 1], "outcome": "failed", "reason": "RuntimeError: Connection reset", "at_s": 41.2, …}

A fault that comes one time in twenty passes every other check, and ends a job that forms its groups once an hour.
"""

from collections.abc import Iterator
from math import ceil, log
from statistics import median

from ddp_doctor.facts.collectives import GroupTest, RepeatsFact
from ddp_doctor.knowledge.thresholds import SLOWER_REPEATS, SLOWER_REPEATS_ON_CPU
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import REPEATS, Check
from ddp_doctor.model.choices import Severity, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Fact, Skip
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.rates import FAILED, far_slower, slowed, telling, wilson
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, likely, proved
from ddp_doctor.wording.proofs import rate
from ddp_doctor.wording.repeats import clock, percent


def probe(_ctx: Context) -> Fact:
    """The head repeats trials of all ranks (engine/repeats.py)."""
    raise Skip("it is the head's to repeat")


@rule("DD670", "repeats-fail-now-and-then", Severity.ERROR, RepeatsFact)
def repeats_fail(recording: Recording) -> Iterator[Draft]:
    """Some of the repeated tests of all ranks fail, hang or give wrong sums.

    Finds: Repeats that did not pass, with the rate, and the 95 % interval in which it lies (Wilson's). Nobody is named:
        that some rank failed first, or waited, in one of many repeats shows no more than where the fault was seen.
    Why: What fails one time in twenty passes a single test, and ends a job of many hours, or of many starts.
    Remedy: The reasons name what failed. Between several nodes, `--isolate --repeat` finds whose fault it is.
    See: docs/how-to/find-a-fault-that-comes-and-goes.md
        https://doi.org/10.1214/ss/1009213286 (Brown, Cai and DasGupta, on the interval)
    """
    fact = recording.first(RepeatsFact)
    tests = telling(fact.tests) if fact else []
    failed = [test for test in tests if test.outcome in FAILED]
    if not failed:
        return
    share, (low, high) = len(failed) / len(tests), map(percent, wilson(len(failed), len(tests)))
    when = f"the first after {clock(failed[0].at_s)}, the last after {clock(failed[-1].at_s)}"
    of = f"{len(tests)} repeats in {clock(tests[-1].at_s + tests[-1].duration_s)}"
    by_end = grouped((_end(test), test) for test in failed)
    yield proved(
        NOBODY,
        f"{len(failed)} of {len(tests)} repeats failed: {percent(share)} %, 95 % interval {low} to {high} %",
        [
            Evidence(text=f"{of}; {when if len(failed) > 1 else when.partition(', ')[0]}"),
            *(
                Evidence(text=f"{len(alike)} of {len(failed)}: {end}")
                for end, alike in list(by_end.items())[:LINES_OF_EVIDENCE]
            ),
        ],
        _narrow_down(recording, share),
    )


def _end(test: GroupTest) -> str:
    if test.outcome == "hung":
        return f"no end in {test.duration_s:.0f} s"
    return test.reason or test.outcome


def _narrow_down(recording: Recording, share: float) -> Remedy:
    """With so many repeats, a group that has the fault shows it with 95 %."""
    times = ceil(log(0.05) / log(1.0 - share)) if share < 1.0 else 1
    cost = "these nodes, for some minutes"
    if recording.nnodes > 1:
        command = f"ddp-doctor run --isolate{f' --repeat {times}' * (times > 1)}"
        return by_operator("Test groups of nodes as often, to find those that fail", command, cost=cost)
    summary = "Repeat it with fewer ranks, as long as it fails, to find those that have to take part"
    return by_operator(summary, f"ddp-doctor run --only repeats --repeat {max(times, 2)} --nproc-per-node 2", cost=cost)


_LOOK = by_operator(
    "See what changed on the nodes meanwhile: clocks and heat, other programs, errors of links",
    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
    "nstat -az | grep -i retrans",
    "ethtool -S IFACE | grep -iE 'err|drop|discard'",
)


@rule("DD671", "repeats-become-slower", Severity.WARNING, RepeatsFact)
def repeats_become_slower(recording: Recording) -> Iterator[Draft]:
    """The last repeats are slower than the first.

    Finds: The median rate of the last third of the repeats below that of the first by 15 % and more over NCCL, by half
        and more over gloo, which shares the cores, and by more than both scatter. Of fewer than fifteen repeats that
        passed nothing is judged.
    Why: GPUs that get hot, a link that drops more and more, or a neighbour: a job would slow down the same way.
    Remedy: Look at clocks, temperatures, counters of links and other programs, at the start and again at the end.
    See: docs/how-to/find-a-fault-that-comes-and-goes.md
    """
    fact = recording.first(RepeatsFact)
    least = SLOWER_REPEATS if recording.on_nccl else SLOWER_REPEATS_ON_CPU
    if fact is not None and (found := slowed(fact.tests, least)) is not None:
        lost, took = percent(1 - found.last / found.first), clock(fact.tests[-1].at_s)
        yield likely(
            NOBODY,
            f"Repeats became {lost} % slower in {took}: {rate(found.first)} at first, {rate(found.last)} at last",
            Evidence(
                text="median of the last third of the repeats",
                value=found.last,
                unit="B/s",
                expected=found.first,
                expected_from="the first third",
            ),
            _LOOK,
        )


@rule("DD672", "repeats-far-slower-than-the-rest", Severity.WARNING, RepeatsFact)
def repeats_far_slower(recording: Recording) -> Iterator[Draft]:
    """Single repeats that are many times slower than the usual one.

    Finds: Two and more repeats that passed at a fourth of the usual rate or less, and farther off than all scatter. Of
        fewer than fifteen repeats that passed nothing is judged.
    Why: A step of a job waits for its slowest collective: pauses that come now and then cost all ranks.
    Remedy: Look for what comes now and then: lost packets, other programs, clocks that fall.
    See: docs/how-to/find-a-fault-that-comes-and-goes.md
    """
    fact = recording.first(RepeatsFact)
    if fact is not None and (slow := far_slower(fact.tests)):
        rates = [test.bytes_per_s for test in fact.tests if test.bytes_per_s is not None]
        usual, worst = median(rates), min(test.bytes_per_s or 0.0 for test in slow)
        when = f"after {', '.join(clock(test.at_s) for test in slow[:LINES_OF_EVIDENCE])}"
        yield likely(
            NOBODY,
            f"{len(slow)} of {len(rates)} repeats were far slower than the usual {rate(usual)}: down to {rate(worst)}",
            Evidence(
                text=f"the slowest; they began {when}",
                value=worst,
                unit="B/s",
                expected=usual,
                expected_from="the median",
            ),
            _LOOK,
        )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """The share of the repeats that failed, and the 95 % interval of it."""
    fact = recording.first(RepeatsFact)
    if fact is not None and (tests := telling(fact.tests)):
        failed = sum(test.outcome in FAILED for test in tests)
        low, high = wilson(failed, len(tests))
        for name, value in (("", failed / len(tests)), ("_low", low), ("_high", high)):
            labels: dict[str, str | int | float] = {"repeats": len(tests), "failed": failed}
            yield Measurement(name=f"repeats_failed{name}", value=value, unit="", labels=labels)


CHECK = Check(
    id=REPEATS,
    title="All ranks pass again and again",
    where=Where.GROUPS,
    probe=probe,
    facts=(RepeatsFact,),
    rules=(repeats_fail, repeats_become_slower, repeats_far_slower),
    min_ranks=2,
    cost_s=0.0,  # its time is given by --repeat and --soak, and is none of the budget's
    measurements=measurements,
)
