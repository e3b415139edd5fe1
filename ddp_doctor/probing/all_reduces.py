"""How fast is an all-reduce, over sizes, and what nccl-tests makes of the measured ("algorithm") bandwidth.

``algbw`` is bytes / time. A rank must move more than that over its link, depending on the number of ranks;
``busbw`` corrects for it, so that one number can be compared with the rate of the hardware whatever the world size.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md ("Bus bandwidth", Summary).
With in-network reduction (NVLink SHARP) the switch adds, and the busbw may exceed the link.
"""

from statistics import median

from ddp_doctor.facts.collectives import SizeResult
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext
from ddp_doctor.probing.rank_identity import finish


def bandwidth(ctx: RankContext) -> tuple[list[SizeResult], int | None]:
    """Sizes 4 B, then 1 KiB to 256 MiB by fours, until the ranks agree that time or memory is short."""
    results: list[SizeResult] = []
    spent, previous = 0.0, 0.0
    allowed = _time_for_sizes(ctx)
    for size in payload.sweep_sizes(ctx.level is Level.QUICK):
        # Large sizes take about four times longer each; the slowest rank decides for all.
        growth = 5 if size > payload.LATENCY_BOUND_BYTES else 2
        is_short = spent + growth * previous >= allowed or not _fits_memory(ctx, size)
        if agreed(ctx, float(is_short)):
            return results, size
        started = ctx.clock()
        results.append(measure(ctx, size))
        previous = ctx.clock() - started
        spent += previous
    return results, None


def _time_for_sizes(ctx: RankContext) -> float:
    share = {Level.QUICK: 0.25, Level.STANDARD: 1.0, Level.THOROUGH: 5.0}[ctx.level]
    return min(share, ctx.remaining() * 0.6)


def _fits_memory(ctx: RankContext, size: int) -> bool:
    """Twice the payload per rank: within the rank's share of its GPU, or a quarter of what the host has free."""
    if ctx.device.startswith("cuda"):
        return 2 * size <= ctx.gpu_memory_bytes
    import psutil

    free = psutil.virtual_memory().available // max(ctx.world_size, 1)
    return bool(2 * size < free // 4)


def agreed(ctx: RankContext, value: float, *, of_first: bool = False) -> float:
    """The largest value of all ranks, or that of the first: what follows must be the same everywhere."""
    import torch
    import torch.distributed as dist

    mine = value if not of_first or ctx.group_rank == 0 else float("-inf")
    tensor = torch.tensor([mine], dtype=torch.float64, device=ctx.device)
    with ctx.step("all_reduce", "float64 [1] max"):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=ctx.group)
        return float(tensor.item())


def meet(ctx: RankContext) -> None:
    """Wait until all ranks have arrived."""
    agreed(ctx, 0.0)


def measure(ctx: RankContext, size: int) -> SizeResult:
    """Time as many all-reduces of ``size`` bytes as the level asks for, then check one."""
    return timed_all_reduces(ctx, size, payload.iterations(size, quick=ctx.level is Level.QUICK))


def timed_all_reduces(ctx: RankContext, size: int, iterations: int) -> SizeResult:
    """Time all-reduces of ``size`` bytes, then check one."""
    import torch
    import torch.distributed as dist

    elements = max(size // 4, 1)
    tensor = torch.zeros(elements, device=ctx.device)  # zeros stay zeros: no overflow, any count
    times = []
    with ctx.step("all_reduce", f"float32 [{elements}] sum, {iterations + 1} times"):
        dist.all_reduce(tensor)  # the first one allocates
        finish(ctx.device)
        for _ in range(iterations):
            started = ctx.clock()
            dist.all_reduce(tensor)
            finish(ctx.device)
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
        busbw_gb_per_s=busbw(algbw, ctx.world_size),
        wrong=wrong,
    )


def not_reduced(ctx: RankContext, dtype: str) -> str:
    """Why the backend does not reduce this dtype, "" where it does: it refuses on all ranks, before it sends."""
    import torch
    import torch.distributed as dist

    element = torch.ones(1, dtype=getattr(torch, dtype), device=ctx.device)
    try:
        with ctx.step("all_reduce", f"1 {dtype}"):
            dist.all_reduce(element, group=ctx.group)
    except (RuntimeError, TypeError) as refused:  # gloo's, NCCL's
        return f"the backend does not reduce {dtype}: {refused}"[:300]
    return ""


def busbw(algbw: float, ranks: int) -> float:
    """The bus bandwidth of an all-reduce: each element is reduced, then handed back, by all but its own rank."""
    return algbw * 2 * (ranks - 1) / ranks
