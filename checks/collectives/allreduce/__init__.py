"""All-reduce: is the sum right in every type, is it repeatable, and how fast is it?

Raw input: none; measured on every rank and shown as nccl-tests does:

    #       size         time   algbw   busbw  #wrong
    #        (B)         (us)  (GB/s)  (GB/s)
         1048576       1423.1    0.74    0.74       0

Every backward pass of DistributedDataParallel is a row of all-reduces. The payload of each rank is
coded by its number (knowledge/ddp/payload.py), so that wrong sums that agree name the rank whose share is
wrong. A few wrong elements, or wrong ones that differ, name nobody: that is a flipped bit on the way.
"""

from collections.abc import Iterator

from ddp_doctor.checks.collectives.allreduce import rules
from ddp_doctor.checks.collectives.allreduce.sums import correctness, is_repeatable
from ddp_doctor.facts.collectives import AllReduceFact, SizeResult
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.all_reduces import bandwidth

__all__ = ["CHECK", "probe"]


def probe(ctx: RankContext) -> AllReduceFact:
    """Correctness in every type, repeatability bit for bit, then the bandwidth over sizes."""
    tested, wrong = correctness(ctx)
    repeatable = is_repeatable(ctx)
    sizes, stopped_at = bandwidth(ctx)
    return AllReduceFact(
        ranks=ctx.world_size,
        tested=tuple(tested),
        wrong=tuple(wrong),
        repeatable=repeatable,
        sizes=tuple(sizes),
        stopped_at_bytes=stopped_at,
    )


def slowest(recording: Recording) -> list[SizeResult]:
    """Per size the result of the slowest rank: a collective is as fast as its last rank."""
    by_size: dict[int, list[SizeResult]] = {}
    for seen in recording.facts(AllReduceFact):
        for result in seen.fact.sizes:
            by_size.setdefault(result.size_bytes, []).append(result)
    return [max(results, key=lambda one: one.time_us) for _, results in sorted(by_size.items())]


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Time, bandwidths and jitter per size, of the slowest rank, and the size at which it ended early."""
    fact = recording.first(AllReduceFact)
    for result in slowest(recording):
        labels: dict[str, str | int | float] = {
            "bytes": result.size_bytes,
            "ranks": fact.ranks if fact else 0,
        }
        yield Measurement(name="allreduce_time", value=result.time_us / 1e6, unit="s", labels=labels)
        yield Measurement(
            name="allreduce_algbw", value=result.algbw_gb_per_s * 1e9, unit="B/s", labels=labels
        )
        yield Measurement(
            name="allreduce_busbw", value=result.busbw_gb_per_s * 1e9, unit="B/s", labels=labels
        )
        yield Measurement(name="allreduce_wrong", value=result.wrong, unit="elements", labels=labels)
        jitter = (result.max_us - result.min_us) / 1e6
        yield Measurement(name="allreduce_jitter", value=jitter, unit="s", labels=labels)
    if fact is not None and fact.stopped_at_bytes is not None:  # the ranks stop together
        untested = fact.stopped_at_bytes
        yield Measurement(
            name="allreduce_untested_from", value=untested, unit="B", labels={"ranks": fact.ranks}
        )


CHECK = Check(
    id="allreduce",
    title="All-reduce is right, repeatable and fast",
    where=Where.RANK,
    probe=probe,
    facts=(AllReduceFact,),
    rules=rules_in(rules),
    min_ranks=1,
    cost_s=2.0,
    measurements=measurements,
)
