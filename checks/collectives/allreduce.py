"""All-reduce: whether the sum is right in every type and repeatable, and how fast it is.

Raw input: none; it is measured on every rank and shown as nccl-tests does:

    #       size         time   algbw   busbw  #wrong
    #        (B)         (us)  (GB/s)  (GB/s)
         1048576       1423.1    0.74    0.74       0

Why it matters: every backward pass of DistributedDataParallel is a series of all-reduces. Each rank's payload encodes
its number (knowledge/ddp/payload.py), so equal wrong sums identify the rank whose share is wrong. A few wrong elements,
or different ones, identify no rank: a bit was flipped on the way.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddp_doctor.facts.collectives import ELEMENTS, AllReduceFact, Wrong
from ddp_doctor.knowledge.collectives import ALL_REDUCE, TABLE
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Consequence, Level, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Draft, Evidence, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.all_reduces import bandwidth, budget_for
from ddp_doctor.probing.collectives import is_repeatable
from ddp_doctor.remedies.nccl import ONE_ALGORITHM, against_wrong_sums
from ddp_doctor.wording.findings import finding, likely
from ddp_doctor.wording.ranks import rank_at, rank_culprit, ranks_at

if TYPE_CHECKING:
    import torch


def probe(ctx: RankContext) -> AllReduceFact:
    """Test correctness in every type, then bitwise repeatability, then the bandwidth over sizes."""
    tested, wrong = correctness(ctx)
    repeatable = is_repeatable(ctx, TABLE[ALL_REDUCE], f"float32 [{ELEMENTS}] sum")
    sweep = bandwidth(ctx)
    return AllReduceFact(
        ranks=ctx.world_size,
        tested=tuple(tested),
        wrong=tuple(wrong),
        repeatable=repeatable,
        sizes=tuple(sweep.sizes),
        stopped_at_bytes=sweep.stopped_at,
        short_of=sweep.short_of,
        needs=sweep.needs,
    )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield time, bandwidths and jitter of the slowest rank per size, and the size at which the sweep stopped."""
    fact = recording.first(AllReduceFact)
    by_size = grouped(
        (result.size_bytes, result) for rank in recording.facts(AllReduceFact) for result in rank.fact.sizes
    )
    for _, results in sorted(by_size.items()):
        result = max(results, key=lambda result: result.time_us)  # a collective is as fast as its last rank
        labels: dict[str, str | int | float] = {"bytes": result.size_bytes, "ranks": fact.ranks if fact else 0}
        if fact is not None and not fact.tested:  # measured by another program, from a job's output
            labels["type"] = "not known"
        for name, value, unit in (
            ("time", result.time_us / 1e6, "s"),
            ("algbw", result.algbw_gb_per_s * 1e9, "B/s"),
            ("busbw", result.busbw_gb_per_s * 1e9, "B/s"),
            ("wrong", result.wrong, "elements"),
            ("jitter", (result.max_us - result.min_us) / 1e6, "s"),
        ):
            yield Measurement(name=f"allreduce_{name}", value=value, unit=unit, labels=labels)
    if fact is not None and fact.stopped_at_bytes is not None:  # the ranks stop together
        yield Measurement(
            name="allreduce_untested_from",
            value=fact.stopped_at_bytes,
            unit="B",
            labels={"ranks": fact.ranks, **_shortage(recording)},
        )


def _shortage(recording: Recording) -> dict[str, str | int | float]:
    """Return the resource that ended the sizes early and the amount needed, for the rank that needs most."""
    facts = [rank.fact for rank in recording.facts(AllReduceFact)]
    first = facts[0]
    if first.short_of is None or first.stopped_at_bytes is None:
        return {}
    labels: dict[str, str | int | float] = {"short_of": first.short_of}
    needs = [max(of_ranks) for of_ranks in zip(*(fact.needs for fact in facts), strict=False)]
    if not needs:
        return labels
    if first.short_of == "memory":
        on = "a GPU" if recording.on_nccl else "a host"
        return {**labels, "needs_bytes": needs[-1], "needs_on": on}
    budgets = [budget_for(need, recording.options.level) for need in needs]
    reached = sum(budget is not None for budget in budgets)
    if reached:
        labels["budget_s"] = budgets[reached - 1] or 0.0
    if 0 < reached < len(needs):
        labels["reaches_bytes"] = first.stopped_at_bytes * 4**reached // 4
    return {**labels, "needs_s": round(needs[max(reached - 1, 0)], 3)}


def correctness(ctx: RankContext) -> tuple[list[str], list[Wrong]]:
    """Return the tested types and operations, and the wrong results."""
    import torch
    import torch.distributed as dist

    tested, wrong = [], []
    # With many CPU ranks on one node, each collective takes as long as an entire check on other nodes.
    is_crowded = ctx.world_size > payload.CROWD and ctx.device == "cpu" and ctx.level is Level.QUICK
    for dtype, op in payload.exact_cases(ctx.world_size, few=is_crowded):
        value = payload.share(op, ctx.group_rank, ctx.world_size, dtype)
        tensor = torch.full((ELEMENTS,), value, dtype=getattr(torch, dtype), device=ctx.device)
        with ctx.step("all_reduce", f"{dtype} [{ELEMENTS}] {op}"):
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op.upper()))
            found = compare(tensor, dtype, op, ctx)
        tested.append(f"{dtype} {op}")
        if found is not None:
            wrong.append(found)
    return tested, wrong


def compare(tensor: "torch.Tensor", dtype: str, op: str, ctx: RankContext) -> Wrong | None:
    """Return what is wrong with a reduced tensor, or None."""
    expected = payload.expected(op, ctx.world_size, dtype)
    # A product of floats may exceed the largest integer that torch compares with.
    off = (tensor != (float(expected) if tensor.is_floating_point() else expected)).nonzero()
    if len(off) == 0:
        return None
    first = tensor[off[0]]
    got, uniform = first.item(), bool((tensor[off] == first).all().item())  # keeps integers as integers
    throughout = uniform and len(off) == ELEMENTS
    blamed = payload.blame(op, got, ctx.world_size, dtype) if throughout else ()
    return Wrong(
        dtype=dtype,
        op=op,
        elements=len(off),
        expected=float(expected),
        got=float(got),
        alike=uniform,
        blamed=tuple(ctx.ranks[rank] for rank in blamed),
    )


@rule("DD601", "all-reduce-is-wrong", Consequence.WRONG, AllReduceFact)
def all_reduce_is_wrong(recording: Recording) -> Iterator[Draft]:
    """The result of an all-reduce is not the true sum, maximum, minimum or product.

    Finds: Reports elements that differ from the closed form. The contributions are coded by rank: a rank is named if
        every wrong sum, on every rank, is off by that rank's contribution throughout.
    Why: Gradients are summed this way, so training continues with wrong results.
    Remedy: On GPUs, set NCCL_P2P_DISABLE=1 to test whether peer-to-peer transfers corrupt data, then check for memory
        errors (nvidia-smi -q -d ECC). Otherwise, the library is the likely cause: try another NCCL or torch.
    See: nccl-tests, verifiable/: the same idea; NVIDIA/nccl-tests#117: wrong data over P2P
    """
    # nccl-tests' table in a job's output does not show ranks: DDJ155 reports it.
    ranks = [rank for rank in recording.facts(AllReduceFact) if rank.rank is not None]
    faulty = [rank for rank in ranks if _errors(rank.fact)]
    if not faulty:
        return
    # A share that was wrong at its source is wrong on every rank: one rank without wrong sums rules it out.
    sums = [[wrong for wrong in rank.fact.wrong if wrong.op == "sum"] for rank in ranks]
    # An older recording may blame a rank for a few wrong elements.
    accused = (wrong.blamed if wrong.elements == ELEMENTS else () for of_rank in sums for wrong in of_rank)
    blamed = payload.agreed(accused) if all(sums) else None
    several = len({wrong.dtype for of_rank in sums for wrong in of_rank}) > 1
    on = ranks_at(recording, [rank.rank or 0 for rank in faulty])
    wrong_sizes = (size.size_bytes for size in faulty[0].fact.sizes if size.wrong)
    whose = (
        "it is unknown which rank is faulty"
        if blamed is None
        else f"the contribution of {rank_at(recording, blamed)} is wrong"
    )
    yield finding(
        () if blamed is None else (rank_culprit(recording, blamed),),
        f"All-reduce returns wrong results on {on}: {whose}",
        tuple(_errors(faulty[0].fact))[:6],
        *against_wrong_sums(recording),
        confidence=Confidence.PROVED if blamed is None or several else Confidence.LIKELY,
        detail="Training would continue with wrong gradients.",
        reproduced_by=Reproducer(kind="all_reduce", size_bytes=min(wrong_sizes, default=4 * ELEMENTS)),
    )


def _errors(fact: AllReduceFact) -> list[Evidence]:
    shares = [
        Evidence(
            text=f"{wrong.dtype} {wrong.op}, {wrong.elements} of {ELEMENTS} elements wrong"
            + (", all equal" if wrong.alike and wrong.elements > 1 else ""),
            value=wrong.got,
            expected=wrong.expected,
            expected_from="exact result of rank-coded contributions",
        )
        for wrong in fact.wrong
    ]
    sweeps = [
        Evidence(text=f"{size.size_bytes} B: #wrong {size.wrong}", value=size.wrong, expected=0)
        for size in fact.sizes
        if size.wrong
    ]
    return shares + sweeps


@rule("DD602", "all-reduce-is-not-repeatable", Consequence.RISK, AllReduceFact)
def all_reduce_is_not_repeatable(recording: Recording) -> Iterator[Draft]:
    """Two all-reduces of the same inputs differ in their last bits.

    Finds: Reports a rank on which the same inexact fp32 inputs gave two different sums in one process group. Severity
        is error if other ranks had equal sums, because this rank then had a different result.
    Why: Runs cannot be reproduced bit for bit, and silent data corruption cannot be distinguished from noise. If only
        some ranks are affected, the replicas drift apart.
    Remedy: Set one fixed algorithm (NCCL_ALGO=Ring) if repeatability matters. This reduces speed.
    See: NCCL user guide, NCCL_ALGO
    """
    unrepeatable_ranks = [rank.rank or 0 for rank in recording.facts(AllReduceFact) if not rank.fact.repeatable]
    if unrepeatable_ranks:
        on_all = len(unrepeatable_ranks) == len(recording.facts(AllReduceFact))
        yield likely(
            (rank_culprit(recording, rank) for rank in unrepeatable_ranks),
            f"All-reduce is not bit-for-bit reproducible on {ranks_at(recording, unrepeatable_ranks)}",
            Evidence(text="two float32 sums of equal inputs differ"),
            *((ONE_ALGORITHM,) if recording.on_nccl else ()),
            detail="Two all-reduces of the same inputs in one process group gave different bits."
            + ("" if on_all else " Other ranks got equal bits, so the results differ between ranks."),
            severity=Severity.WARNING if on_all else Severity.ERROR,
        )


CHECK = Check(
    id="allreduce",
    title="All-reduce is right, repeatable and fast",
    where=Where.RANK,
    probe=probe,
    facts=(AllReduceFact,),
    rules=(all_reduce_is_wrong, all_reduce_is_not_repeatable),
    cost_s=1.3,  # 1 s for the sizes at level standard; the types took 0.2 s on two cores
    is_essential=True,
    measurements=measurements,
)
