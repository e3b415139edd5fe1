"""All-reduce: is the sum right in every type, is it repeatable, and how fast is it?

Raw input: none; measured on every rank and shown as nccl-tests does:

    #       size         time   algbw   busbw  #wrong
    #        (B)         (us)  (GB/s)  (GB/s)
         1048576       1423.1    0.74    0.74       0

Every backward pass of DistributedDataParallel is a row of all-reduces. The payload of each rank is
coded by its number (knowledge/payload.py), so that wrong sums that agree name the rank whose share is
wrong. A few wrong elements, or wrong ones that differ, name nobody: that is a flipped bit on the way.
"""

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from ddp_doctor.knowledge import payload
from ddp_doctor.knowledge.bandwidth import busbw
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Level, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.ranks import rank_at, rank_culprit, ranks_at

if TYPE_CHECKING:
    import torch

KIB, MIB = 1 << 10, 1 << 20
#: Elements of a correctness payload: several gloo segments and NCCL slices, small enough for fp16.
ELEMENTS = 4096


class Wrong(Frozen):
    """A reduction whose result differs from the closed form."""

    dtype: str
    op: str
    elements: int  # how many are wrong
    expected: float
    got: float  # the first wrong element
    alike: bool = False  # every wrong element is ``got``
    blamed: tuple[int, ...] = ()  # original ranks of which one's share is missing or doubled, throughout


class SizeResult(Frozen):
    """One message size. Times are of this rank; ``wrong`` counts elements."""

    size_bytes: int
    time_us: float  # median
    min_us: float
    max_us: float
    iterations: int
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int


class AllReduceFact(Fact):
    """One rank's all-reduces."""

    KIND: ClassVar[str] = "allreduce/1"

    ranks: int
    tested: tuple[str, ...]  # "float32 sum", …
    wrong: tuple[Wrong, ...] = ()
    repeatable: bool
    sizes: tuple[SizeResult, ...] = ()
    stopped_at_bytes: int | None = None  # the first size that no longer fitted the time or memory


def probe(ctx: RankContext) -> AllReduceFact:
    """Correctness in every type, repeatability bit for bit, then the bandwidth over sizes."""
    tested, wrong = _correctness(ctx)
    repeatable = _repeatable(ctx)
    sizes, stopped_at = _bandwidth(ctx)
    return AllReduceFact(
        ranks=ctx.world_size,
        tested=tuple(tested),
        wrong=tuple(wrong),
        repeatable=repeatable,
        sizes=tuple(sizes),
        stopped_at_bytes=stopped_at,
    )


def _correctness(ctx: RankContext) -> tuple[list[str], list[Wrong]]:
    import torch
    import torch.distributed as dist

    ops = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
    ops["product"] = dist.ReduceOp.PRODUCT
    tested, wrong = [], []
    for dtype, op in payload.exact_cases(ctx.world_size, few=_is_crowded(ctx)):
        value = payload.share(op, ctx.group_rank, ctx.world_size, dtype)
        tensor = torch.full((ELEMENTS,), value, dtype=getattr(torch, dtype), device=ctx.device)
        with ctx.step("all_reduce", f"{dtype} [{ELEMENTS}] {op}"):
            dist.all_reduce(tensor, op=ops[op])
            found = _compare(tensor, dtype, op, ctx)
        tested.append(f"{dtype} {op}")
        if found is not None:
            wrong.append(found)
    return tested, wrong


def _is_crowded(ctx: RankContext) -> bool:
    """Many CPU ranks on one node: each collective costs what a whole check costs elsewhere."""
    return ctx.world_size > payload.CROWD and ctx.device == "cpu" and ctx.level is Level.QUICK


def _compare(tensor: "torch.Tensor", dtype: str, op: str, ctx: RankContext) -> Wrong | None:
    expected = payload.expected(op, ctx.world_size, dtype)
    # A product of floats may exceed the largest integer that torch compares with.
    off = (tensor != (float(expected) if tensor.is_floating_point() else expected)).nonzero()
    if len(off) == 0:
        return None
    first = tensor[off[0]]
    got, alike = first.item(), bool((tensor[off] == first).all().item())  # integers as integers
    throughout = alike and len(off) == ELEMENTS
    blamed = payload.blame(op, got, ctx.world_size, dtype) if throughout else ()
    return Wrong(
        dtype=dtype,
        op=op,
        elements=len(off),
        expected=float(expected),
        got=float(got),
        alike=alike,
        blamed=tuple(ctx.ranks[rank] for rank in blamed),
    )


def _repeatable(ctx: RankContext) -> bool:
    """Whether the same inputs give the same bits twice; the inputs are not exact in fp32."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(1000 + ctx.group_rank)
    given = torch.rand(ELEMENTS, generator=generator).to(ctx.device)
    results = []
    for _ in range(2):
        tensor = given.clone()
        with ctx.step("all_reduce", f"float32 [{ELEMENTS}] sum"):
            dist.all_reduce(tensor)
        results.append(tensor)
    return bool(torch.equal(results[0], results[1]))


def _bandwidth(ctx: RankContext) -> tuple[list[SizeResult], int | None]:
    """Sizes 4 B, then 1 KiB to 256 MiB by fours, until the ranks agree that time or memory is short."""
    results: list[SizeResult] = []
    spent, previous = 0.0, 0.0
    allowed = _time_for_sizes(ctx)
    for size in payload.sweep_sizes(ctx.level is Level.QUICK):
        # Large sizes take about four times longer each; the slowest rank decides for all.
        growth = 5 if size > payload.LATENCY_BOUND_BYTES else 2
        if not _all_agree(ctx, spent + growth * previous < allowed and _fits_memory(ctx, size)):
            return results, size
        started = ctx.clock()
        results.append(_measure(ctx, size))
        previous = ctx.clock() - started
        spent += previous
    return results, None


def _time_for_sizes(ctx: RankContext) -> float:
    share = {Level.QUICK: 0.25, Level.STANDARD: 1.0, Level.THOROUGH: 5.0}[ctx.level]
    return min(share, ctx.remaining() * 0.6)


def _fits_memory(ctx: RankContext, size: int) -> bool:
    """Twice the payload per rank, never more than a quarter of what is free beside other programs."""
    import torch

    if ctx.device.startswith("cuda"):
        free = torch.cuda.mem_get_info()[0]
    else:
        import psutil

        free = psutil.virtual_memory().available // max(ctx.world_size, 1)
    return bool(2 * size < free // 4)


def _all_agree(ctx: RankContext, mine: bool) -> bool:
    import torch
    import torch.distributed as dist

    vote = torch.tensor([float(mine)], device=ctx.device)
    with ctx.step("all_reduce", "float32 [1] min"):
        dist.all_reduce(vote, op=dist.ReduceOp.MIN)
        return bool(vote.item() == 1.0)


def _measure(ctx: RankContext, size: int) -> SizeResult:
    import torch
    import torch.distributed as dist

    elements = max(size // 4, 1)
    tensor = torch.zeros(elements, device=ctx.device)  # zeros stay zeros: no overflow, any count
    iterations = payload.iterations(size, quick=ctx.level is Level.QUICK)
    times = []
    with ctx.step("all_reduce", f"float32 [{elements}] sum, {iterations + 1} times"):
        dist.all_reduce(tensor)  # the first one allocates
        _synchronize(ctx.device)
        for _ in range(iterations):
            started = ctx.clock()
            dist.all_reduce(tensor)
            _synchronize(ctx.device)
            times.append(ctx.clock() - started)
        tensor.fill_(float(ctx.group_rank + 1))
        dist.all_reduce(tensor)
        total = ctx.world_size * (ctx.world_size + 1) / 2
        wrong = int((tensor != total).sum().item())
    typical = median(times)
    algbw = size / typical / 1e9
    return SizeResult(
        size_bytes=size,
        time_us=typical * 1e6,
        min_us=min(times) * 1e6,
        max_us=max(times) * 1e6,
        iterations=iterations,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=busbw("all_reduce", algbw, ctx.world_size),
        wrong=wrong,
    )


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


@rule("DD601", "all-reduce-is-wrong", Severity.ERROR, AllReduceFact)
def wrong_result(recording: Recording) -> Iterator[Draft]:
    """An all-reduce whose result is not the true sum, maximum, minimum or product.

    What it finds
        Elements that differ from the closed form. The shares are coded by rank: a rank is named where
        every wrong sum, on every rank, is off throughout by one and the same rank's share.

    Why it matters
        Gradients are summed this way: the training goes on and is wrong.

    Remedy
        GPUs: NCCL_P2P_DISABLE=1 tells whether peer-to-peer transfers corrupt data; then memory
        errors (nvidia-smi -q -d ECC). Else the library: another NCCL or torch.

    References
        nccl-tests, verifiable/: the same idea; NVIDIA/nccl-tests#117: wrong data over P2P
    """
    seen = recording.facts(AllReduceFact)
    faulty = [one for one in seen if _errors(one.fact)]
    if not faulty:
        return
    # A share that was wrong at its source is wrong on every rank: a rank that saw none speaks against it.
    sums = [_wrong_sums(one.fact) for one in seen]
    blamed = payload.agreed(wrong.blamed for one in sums for wrong in one) if all(sums) else None
    several = len({wrong.dtype for one in sums for wrong in one}) > 1
    on = ranks_at(recording, [one.rank or 0 for one in faulty])
    whose = "unsure whose share" if blamed is None else f"the share of {rank_at(recording, blamed)}"
    yield Draft(
        title=f"All-reduce gives wrong results on {on}: {whose} is wrong",
        detail="A training on these ranks would go on, and its gradients would be wrong.",
        confidence=Confidence.PROVED if blamed is None or several else Confidence.LIKELY,
        culprits=() if blamed is None else (rank_culprit(recording, blamed),),
        evidence=tuple(_errors(faulty[0].fact))[:6],
        remedies=(
            Remedy(
                summary="Repeat without GPU peer-to-peer transfers and look for memory errors",
                commands=("NCCL_P2P_DISABLE=1 ddp-doctor run --only allreduce", "nvidia-smi -q -d ECC"),
                scope="node",
            ),
        ),
    )


def _wrong_sums(fact: AllReduceFact) -> list[Wrong]:
    """The wrong sums, without the blame that an older recording may put on a few wrong elements."""
    sums = [wrong for wrong in fact.wrong if wrong.op == "sum"]
    return [
        wrong if wrong.elements == ELEMENTS else wrong.model_copy(update={"blamed": ()}) for wrong in sums
    ]


def _errors(fact: AllReduceFact) -> list[Evidence]:
    shares = [
        Evidence(
            check="allreduce",
            text=f"{wrong.dtype} {wrong.op}: {wrong.elements} of {ELEMENTS} elements are off"
            + (", all alike" if wrong.alike and wrong.elements > 1 else ""),
            value=wrong.got,
            expected=wrong.expected,
            expected_from="closed form of rank-coded shares",
        )
        for wrong in fact.wrong
    ]
    sweeps = [
        Evidence(
            check="allreduce", text=f"{size.size_bytes} B: #wrong {size.wrong}", value=size.wrong, expected=0
        )
        for size in fact.sizes
        if size.wrong
    ]
    return shares + sweeps


@rule("DD602", "all-reduce-is-not-repeatable", Severity.WARNING, AllReduceFact)
def not_repeatable(recording: Recording) -> Iterator[Draft]:
    """Two all-reduces of the same inputs that differ in their last bits.

    What it finds
        A rank where the same inexact fp32 inputs gave two different sums in one process group.

    Why it matters
        Runs cannot be reproduced bit for bit, and silent data corruption cannot be told from noise.

    Remedy
        Fix the algorithm (NCCL_ALGO=Ring) where repeatability matters; it costs speed.

    References
        NCCL user guide, NCCL_ALGO
    """
    odd = [seen.rank or 0 for seen in recording.facts(AllReduceFact) if not seen.fact.repeatable]
    if odd:
        yield Draft(
            title=f"All-reduce is not repeatable bit for bit on {ranks_at(recording, odd)}",
            detail="The same inputs were reduced twice in one process group and the bits differ.",
            culprits=tuple(rank_culprit(recording, rank) for rank in odd),
            evidence=(Evidence(check="allreduce", text="two float32 sums of equal inputs differ"),),
            remedies=(
                Remedy(summary="Fix the algorithm where bit-for-bit repeatability matters", cost="speed"),
            ),
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
    rules=(wrong_result, not_repeatable),
    min_ranks=1,
    cost_s=2.0,
    measurements=measurements,
)
