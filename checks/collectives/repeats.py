"""Repeats of tests with all ranks: how often they fail to connect or to reduce, and whether they become slower.

Raw input, for each repeat (RepeatsFact):

    {"round": 6, "nodes": [0, 1], "outcome": "failed", "reason": "RuntimeError: Connection reset", "at_s": 41.2, …}

Why it matters: a fault that occurs one time in twenty passes every other check, and ends a job that forms its groups
once an hour.
"""

from collections import Counter
from collections.abc import Iterator
from math import ceil, log

from ddp_doctor.facts.collectives import RepeatsFact
from ddp_doctor.knowledge.severity import of_slowdown
from ddp_doctor.knowledge.thresholds import SLOWER_REPEATS, SLOWER_REPEATS_ON_CPU
from ddp_doctor.model.check import REPEATS, Check
from ddp_doctor.model.choices import Consequence, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Fact, Skip
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.rates import FAILED, repeats_of, slowed, wilson
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, likely, proved
from ddp_doctor.wording.proofs import rate
from ddp_doctor.wording.repeats import clock, percent


def probe(_ctx: Context) -> Fact:
    """Skip: the head repeats trials of all ranks (engine/repeats.py)."""
    raise Skip("the head node repeats the tests for all nodes")


@rule("DD670", "repeats-fail-now-and-then", Consequence.FAILS, RepeatsFact)
def repeats_fail(recording: Recording) -> Iterator[Draft]:
    """Some repeated tests of all ranks fail, hang or give wrong sums.

    Finds: Reports repeats that did not pass, with the failure rate and its 95% interval (Wilson). No rank is named: in
        one of many repeats, the rank that failed first, or waited, shows only where the fault appeared.
    Why: A fault that occurs once in twenty times passes a single test, but ends a job that runs for many hours or
        starts many times.
    Remedy: The reasons show what failed. On several nodes, use `--isolate --repeat` to find the faulty ones. On one
        node, reduce the ranks (`--nproc-per-node`) while the fault still occurs.
    See: docs/how-to/find-a-fault-that-comes-and-goes.md
        https://doi.org/10.1214/ss/1009213286 (Brown, Cai and DasGupta, on the interval)
    """
    tests = repeats_of(recording)
    failed = [test for test in tests if test.outcome in FAILED]
    if not failed:
        return
    share, (low, high) = len(failed) / len(tests), map(percent, wilson(len(failed), len(tests)))
    last = f", the last after {clock(failed[-1].at_s)}" if len(failed) > 1 else ""
    took = clock(tests[-1].at_s + tests[-1].duration_s)
    ends = Counter(
        f"no end in {test.duration_s:.0f} s" if test.outcome == "hung" else test.reason or test.outcome
        for test in failed
    )
    # This many repeats show the fault with 95% probability.
    times = ceil(log(0.05) / log(1 - share)) if share < 1 else 1
    narrow_down = by_operator(
        "Repeat the test on groups of nodes, to find the faulty node",
        f"ddp-doctor run --isolate --repeat {times}",
        cost="a few minutes of these nodes",
    )
    yield proved(
        NOBODY,
        f"{len(failed)} of {len(tests)} repeats failed: {percent(share)}% (95% interval {low} to {high}%)",
        [
            Evidence(text=f"{len(tests)} repeats in {took}; the first failed after {clock(failed[0].at_s)}{last}"),
            *(Evidence(text=f"{count} of {len(failed)}: {end}") for end, count in ends.most_common(LINES_OF_EVIDENCE)),
        ],
        *([narrow_down] if recording.nnodes > 1 else []),
    )


@rule("DD671", "repeats-become-slower", Consequence.SLOWER, RepeatsFact)
def repeats_become_slower(recording: Recording) -> Iterator[Draft]:
    """The last repeats are slower than the first.

    Finds: Reports a median rate of the last third of the repeats that is below the first third's by 15% or more over
        NCCL, or by half or more over gloo, which shares the cores, and by more than the scatter of both. With fewer
        than fifteen passed repeats, nothing is reported.
    Why: Possible causes are GPUs that get hot, a link that drops more and more, or another user's load. A job would
        slow down in the same way.
    Remedy: Compare clocks, temperatures, link counters and other programs at the start and at the end.
    See: docs/how-to/find-a-fault-that-comes-and-goes.md
    """
    tests = repeats_of(recording)
    found = slowed(tests, SLOWER_REPEATS if recording.on_nccl else SLOWER_REPEATS_ON_CPU)
    if found is not None:
        first, last = found
        at_s = tests[-1].at_s
        elapsed = f"{at_s:.0f} s" if at_s < 60 else f"{at_s / 60:.1f} min"
        yield likely(
            NOBODY,
            f"Repeats became {percent(1 - last / first)}% slower within {elapsed}: from {rate(first)} to {rate(last)}",
            Evidence(
                text="median of the last third of the repeats",
                value=last,
                unit="B/s",
                expected=first,
                expected_from="the first third",
            ),
            by_operator(
                "Check what changed on the nodes: clocks and heat, other programs, link errors",
                "nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
                "nstat -az | grep -i retrans",
                "ethtool -S IFACE | grep -iE 'err|drop|discard'",
            ),
            severity=of_slowdown(first / last),
        )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the share of the repeats that failed."""
    if tests := repeats_of(recording):
        failed = sum(test.outcome in FAILED for test in tests)
        yield Measurement(
            name="repeats_failed", value=failed / len(tests), unit="", labels={"failed": failed, "repeats": len(tests)}
        )


CHECK = Check(
    id=REPEATS,
    title="All ranks pass again and again",
    where=Where.GROUPS,
    probe=probe,
    facts=(RepeatsFact,),
    rules=(repeats_fail, repeats_become_slower),
    min_ranks=2,
    cost_s=0.5,  # of one repeat
    measurements=measurements,
)
