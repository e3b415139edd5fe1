"""How fast is an all-reduce, over sizes, and what nccl-tests makes of the measured ("algorithm") bandwidth.

``algbw`` is bytes / time. A rank must move more than that over its link, depending on the number of ranks;
``busbw`` corrects for it, so that one number can be compared with the rate of the hardware whatever the world size.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md ("Bus bandwidth", Summary).
With in-network reduction (NVLink SHARP) the switch adds, and the busbw may exceed the link.
"""

import math
from statistics import median
from types import MappingProxyType
from typing import Literal, NamedTuple

from ddp_doctor.facts.collectives import SizeResult
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Options
from ddp_doctor.probing.rank_identity import finish

#: Of a check's time that is left, how much the sizes may take.
_SHARE_OF_CHECK = 0.6
#: Seconds for the sizes within the usual budget.
_TIME_FOR_SIZES = MappingProxyType({Level.QUICK: 0.25, Level.STANDARD: 1.0, Level.THOROUGH: 5.0})

#: The most that a budget brings: the check has 10 s, of which the types take some.
_MOST_FOR_SIZES_S = _SHARE_OF_CHECK * 9.0
#: What a size takes besides its repetitions, in repetitions: new memory, the first call and the check of one. Measured
#: with gloo on two cores: 5 to 9 from 16 MiB on.
_OTHER_CALLS = 6
#: What a rank is short of; the greater one is told.
_TIME, _MEMORY = 1.0, 2.0


class Sweep(NamedTuple):
    """The sizes that were measured; if not all, the first of the rest, what was short, and how much would do."""

    sizes: list[SizeResult]
    stopped_at: int | None = None
    short_of: Literal["time", "memory"] | None = None
    needs: tuple[float, ...] = ()  # for each size that was left out: seconds, or bytes of free memory


def bandwidth(ctx: RankContext) -> Sweep:
    """Sizes 4 B, then 1 KiB to 256 MiB by fours, until the ranks agree that time or memory is short."""
    results: list[SizeResult] = []
    spent, previous = 0.0, 0.0
    # Who gives a run more than the usual budget gives more to the sizes.
    in_budget = _TIME_FOR_SIZES[ctx.level] * max(ctx.budget_s / Options().budget_s, 1.0)
    allowed = min(in_budget, ctx.remaining() * _SHARE_OF_CHECK)
    sizes = payload.sweep_sizes(ctx.level is Level.QUICK)
    for size in sizes:
        fits = _memory_needed(ctx, size) <= _memory_free(ctx)
        in_time = _time_needed(spent, previous, size) < allowed
        short_of = agreed(ctx, _MEMORY if not fits else 0.0 if in_time else _TIME)  # the slowest rank decides for all
        left = sizes[len(results) :]
        if short_of == _MEMORY:
            return Sweep(results, size, "memory", tuple(float(_memory_needed(ctx, size)) for size in left))
        if short_of == _TIME:
            return Sweep(results, size, "time", _time_for_each(ctx.level, left, spent, previous))
        started = ctx.clock()
        results.append(measure(ctx, size))
        previous = ctx.clock() - started
        spent += previous
    return Sweep(results)


def budget_for(needs_s: float, level: Level) -> float | None:
    """The budget, in seconds, that gives the sizes so much; None where the check's own deadline is in the way.

    Up to a half more than the estimate: the same sizes took from two thirds to one and a half of it on two busy cores.
    """
    if 1.25 * needs_s > _MOST_FOR_SIZES_S:
        return None
    seconds = min(1.5 * needs_s, _MOST_FOR_SIZES_S)
    return math.ceil(seconds / _TIME_FOR_SIZES[level] * Options().budget_s / 10) * 10.0


def _time_needed(spent: float, previous: float, size: int) -> float:
    """What there must be more of than this before ``size``: large sizes take about four times longer each."""
    return spent + (5 if size > payload.LATENCY_BOUND_BYTES else 2) * previous


def _time_for_each(level: Level, left: list[int], spent: float, previous: float) -> tuple[float, ...]:
    """For each size that is left, what there must be more of so that it is measured, by the times before."""
    if not previous:
        return ()

    def amount(size: int) -> int:
        """What the time of a size is in proportion to: below the bound it hardly grows."""
        calls = payload.iterations(size, quick=level is Level.QUICK) + _OTHER_CALLS
        return max(size, payload.LATENCY_BOUND_BYTES) * calls

    per_amount, needed = previous / amount(left[0] // 4), [0.0]
    for size in left:
        needed.append(max(needed[-1], _time_needed(spent, previous, size)))
        previous = per_amount * amount(size)
        spent += previous
    return tuple(needed[1:])


def _memory_needed(ctx: RankContext, size: int) -> int:
    """Bytes: twice the payload, on a host eight times, for each rank."""
    return 2 * size if ctx.device.startswith("cuda") else 4 * 2 * size * max(ctx.world_size, 1)


def _memory_free(ctx: RankContext) -> int:
    """Bytes of the rank's share of its GPU, or of the host."""
    if ctx.device.startswith("cuda"):
        return ctx.gpu_memory_bytes
    import psutil

    return int(psutil.virtual_memory().available)


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
