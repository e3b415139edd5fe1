"""How fast is an all-reduce, over sizes, and what nccl-tests makes of the measured ("algorithm") bandwidth.

``algbw`` is bytes / time, where bytes counts the whole array: for all_gather, reduce_scatter, alltoall,
gather and scatter the share of one rank times the number of ranks. A rank must move more or less than that
over its link, depending on the collective and the number of ranks; ``busbw`` corrects for it, so that one
number can be compared with the rate of the hardware whatever the world size.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md ("Bus bandwidth", Summary);
gather, scatter and sendrecv from nccl-tests' src/gather.cu, scatter.cu and sendrecv.cu (GetBw).
With in-network reduction (NVLink SHARP) the switch adds, and the busbw of all_reduce may exceed the link.
"""

import math
from collections.abc import Callable, Mapping
from statistics import median
from types import MappingProxyType
from typing import Literal, NamedTuple

from ddp_doctor.facts.collectives import SizeResult
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Options

#: Of a check's time that is left, how much the sizes may take.
_SHARE_OF_CHECK = 0.6
#: Seconds for the sizes within the usual budget.
_TIME_FOR_SIZES = MappingProxyType({Level.QUICK: 0.25, Level.STANDARD: 1.0, Level.THOROUGH: 5.0})


#: The most that a budget brings: the check has 10 s, of which the types take some.
_MOST_FOR_SIZES_S = _SHARE_OF_CHECK * 9.0


#: What a size takes besides its repetitions, in repetitions: new memory, the first call and the check of one. Measured
#: with gloo on two cores: 5 to 9 from 16 MiB on.
_OTHER_CALLS = 6


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
    allowed = min(time_for_sizes(ctx.level, ctx.budget_s), ctx.remaining() * _SHARE_OF_CHECK)
    sizes = payload.sweep_sizes(ctx.level is Level.QUICK)
    for size in sizes:
        fits = _memory_needed(ctx, size) <= _memory_free(ctx)
        short_of = _shortest(ctx, in_time=_time_needed(spent, previous, size) < allowed, in_memory=fits)
        if short_of:
            left = sizes[len(results) :]
            memory = tuple(float(_memory_needed(ctx, size)) for size in left)
            needs = memory if short_of == "memory" else _time_for_each(ctx.level, left, spent, previous)
            return Sweep(results, size, short_of, needs)
        started = ctx.clock()
        results.append(measure(ctx, size))
        previous = ctx.clock() - started
        spent += previous
    return Sweep(results)


def time_for_sizes(level: Level, budget_s: float) -> float:
    """Seconds: who gives a run more than the usual budget gives more to the sizes."""
    return _TIME_FOR_SIZES[level] * max(budget_s / Options().budget_s, 1.0)


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


def _shortest(ctx: RankContext, *, in_time: bool, in_memory: bool) -> Literal["time", "memory"] | None:
    """What any rank is short of; the slowest rank decides for all."""
    import torch
    import torch.distributed as dist

    mine = 0.0 if not in_memory else 2.0 if in_time else 1.0
    vote = torch.tensor([mine], device=ctx.device)
    with ctx.step("all_reduce", "float32 [1] min"):
        dist.all_reduce(vote, op=dist.ReduceOp.MIN)
        return {0.0: "memory", 1.0: "time"}.get(vote.item())  # type: ignore[return-value]


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
