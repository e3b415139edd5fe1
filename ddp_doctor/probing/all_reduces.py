"""How fast is an all-reduce, over sizes, and what nccl-tests makes of the measured ("algorithm") bandwidth.

``algbw`` is bytes / time, where bytes counts the whole array: for all_gather, reduce_scatter, alltoall,
gather and scatter the share of one rank times the number of ranks. A rank must move more or less than that
over its link, depending on the collective and the number of ranks; ``busbw`` corrects for it, so that one
number can be compared with the rate of the hardware whatever the world size.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md ("Bus bandwidth", Summary);
gather, scatter and sendrecv from nccl-tests' src/gather.cu, scatter.cu and sendrecv.cu (GetBw).
With in-network reduction (NVLink SHARP) the switch adds, and the busbw of all_reduce may exceed the link.
"""

from collections.abc import Callable, Mapping
from statistics import median
from types import MappingProxyType

from ddp_doctor.facts.collectives import SizeResult
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext


def bandwidth(ctx: RankContext) -> tuple[list[SizeResult], int | None]:
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


def _all_agree(ctx: RankContext, mine: bool) -> bool:
    import torch
    import torch.distributed as dist

    vote = torch.tensor([float(mine)], device=ctx.device)
    with ctx.step("all_reduce", "float32 [1] min"):
        dist.all_reduce(vote, op=dist.ReduceOp.MIN)
        return bool(vote.item() == 1.0)


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


def _twice_all_but_own(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


def _everything(_ranks: int) -> float:
    return 1.0


#: busbw / algbw as a function of the number of ranks.
FACTORS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "all_reduce": _twice_all_but_own,  # each element is reduced, then handed back
        "all_gather": _all_but_own,  # a rank has its own share already
        "reduce_scatter": _all_but_own,
        "alltoall": _all_but_own,
        "gather": _all_but_own,
        "scatter": _all_but_own,
        "broadcast": _everything,  # all data must leave the root
        "reduce": _everything,
        "sendrecv": _everything,
    }
)


def busbw(op: str, algbw: float, ranks: int) -> float:
    """The bus bandwidth of collective ``op`` among ``ranks`` ranks, in the unit of ``algbw``.

    Raises ValueError for an unknown collective or fewer than one rank.
    """
    if op not in FACTORS:
        raise ValueError(f"no bus bandwidth is defined for {op!r}; known are {', '.join(FACTORS)}")
    if ranks < 1:
        raise ValueError(f"a collective needs at least one rank, not {ranks}")
    return algbw * FACTORS[op](ranks)
