"""The speed of a collective over message sizes, as nccl-tests computes it from the measured ("algorithm") bandwidth.

``algbw`` is bytes / time. A rank must move more than that over its link, depending on the number of ranks; ``busbw``
corrects for it, so it can be compared with the hardware's rate for any world size.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md ("Bus bandwidth", Summary). With in-network
reduction (NVLink SHARP) the switch does the reduction, and the busbw may exceed the link's rate.
"""

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from ddp_doctor.facts.collectives import SizeResult
from ddp_doctor.knowledge.collectives import ALL_REDUCE, TABLE, Collective
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Options
from ddp_doctor.probing.collectives import timed

#: Share of the check's remaining time that the sizes may take.
_SHARE_OF_CHECK = 0.6
#: Seconds for the sizes with the default budget.
_TIME_FOR_SIZES = MappingProxyType({Level.QUICK: 0.25, Level.STANDARD: 1.0, Level.THOROUGH: 5.0})

#: Maximum seconds with any budget: the check has 10 s, and the tests of the types take some of it.
_MOST_FOR_SIZES_S = _SHARE_OF_CHECK * 9.0
#: Overhead of a size, counted in repetitions: new memory, the first call and the checked call. Measured with gloo on
#: two cores: 5 to 9 at 16 MiB or more.
_OTHER_CALLS = 6
#: Memory on the device for checking a result, in addition to the call's tensors; measured: 10 MiB.
_TO_COMPARE_BYTES = 16 << 20
#: The resource that a rank lacks, as a number: the ranks agree on the maximum, so memory takes precedence.
_TIME, _MEMORY = 1.0, 2.0


class Sweep(NamedTuple):
    """The measured sizes; if not all, also the first skipped size, the scarce resource, and the amount needed."""

    sizes: list[SizeResult]
    stopped_at: int | None = None
    short_of: Literal["time", "memory"] | None = None
    needs: tuple[float, ...] = ()  # for each skipped size: seconds, or bytes of free memory


def bandwidth(ctx: RankContext, row: Collective = TABLE[ALL_REDUCE], sizes: Sequence[int] = ()) -> Sweep:
    """Measure these sizes, by default 4 B and 1 KiB to 256 MiB by a factor of 4, until the ranks agree on a shortage.

    The largest measured size is measured twice, and the faster result counts, if it may be compared with an
    expectation: on GPUs, and if several collectives are measured.
    """
    # A budget above the default gives more time to the sizes. With several collectives, each gets one second.
    level = Level.STANDARD if ctx.part else ctx.level
    in_budget = _TIME_FOR_SIZES[level] * max(ctx.budget_s / Options().budget_s, 1.0)
    allowed = ctx.remaining() if sizes else min(in_budget, ctx.remaining() * _SHARE_OF_CHECK)
    sizes = sizes or [size for size in payload.sweep_sizes(ctx.level is Level.QUICK) if row.moved(size, ctx.world_size)]
    first = timed(ctx, row, sizes[0], 1) if ctx.options.iters and ctx.part else None
    if first is not None and not has_time_for(ctx, first):
        return Sweep([], sizes[0], "time")
    swept = _sweep(ctx, row, sizes, allowed)
    if swept.sizes and (ctx.part or ctx.device.startswith("cuda")) and has_time_for(ctx, swept.sizes[-1]):
        swept.sizes[-1] = faster(swept.sizes[-1], measure(ctx, sizes[len(swept.sizes) - 1], row))
    return swept


def _sweep(ctx: RankContext, row: Collective, sizes: Sequence[int], allowed: float) -> Sweep:
    results: list[SizeResult] = []
    spent, previous = 0.0, 0.0
    for size in sizes:
        fits = memory_needed(ctx, row, size) <= memory_free(ctx)
        in_time = _time_needed(spent, previous, size) < allowed
        if results and ctx.part:
            in_time = in_time and _fits(ctx, results[-1], size)
        short_of = agreed(ctx, _MEMORY if not fits else 0.0 if in_time else _TIME)  # any rank can stop all
        left = sizes[len(results) :]
        if short_of == _MEMORY:
            return Sweep(results, size, "memory", tuple(float(memory_needed(ctx, row, size)) for size in left))
        if short_of == _TIME:
            return Sweep(results, size, "time", _time_for_each(ctx.level, left, spent, previous))
        started = ctx.clock()
        results.append(measure(ctx, size, row))
        previous = ctx.clock() - started
        spent += previous
    return Sweep(results)


def has_time_for(ctx: RankContext, result: SizeResult) -> bool:
    """Return True if all ranks agree that there is time to measure the same size again."""
    return not agreed(ctx, float(not _fits(ctx, result, result.size_bytes)))


def _fits(ctx: RankContext, result: SizeResult, size: int) -> bool:
    """Return True if a size fits in the remaining time, estimated from the calls of a smaller size."""
    calls = _iterations(ctx, size) + (ctx.options.warmup or 1) + _OTHER_CALLS
    took_s = (result.mean_us or result.time_us) / 1e6 * max(size / max(result.size_bytes, 1), 1.0)
    return calls * took_s < ctx.remaining() * _SHARE_OF_CHECK


def faster(one: SizeResult, other: SizeResult) -> SizeResult:
    """Return the faster of two measurements of one size, with the larger count of wrong elements."""
    best = min(one, other, key=lambda result: result.time_us)
    return best.model_copy(update={"again": True, "wrong": max(one.wrong, other.wrong)})


def budget_for(needs_s: float, level: Level) -> float | None:
    """Return the budget in seconds that gives the sizes this much time, or None if the check's deadline does not allow
    it.

    It adds up to half of the estimate: on two busy cores, the same sizes took 2/3 to 3/2 of it.
    """
    if 1.25 * needs_s > _MOST_FOR_SIZES_S:
        return None
    seconds = min(1.5 * needs_s, _MOST_FOR_SIZES_S)
    return math.ceil(seconds / _TIME_FOR_SIZES[level] * Options().budget_s / 10) * 10.0


def _time_needed(spent: float, previous: float, size: int) -> float:
    """Return the time that must be available before ``size`` starts: each large size takes about four times longer."""
    return spent + (5 if size > payload.LATENCY_BOUND_BYTES else 2) * previous


def _time_for_each(level: Level, left: Sequence[int], spent: float, previous: float) -> tuple[float, ...]:
    """Return, for each remaining size, the time that it needs, estimated from the previous times."""
    if not previous:
        return ()

    def amount(size: int) -> int:
        """Return a value proportional to the time of a size, which hardly grows below the latency bound."""
        calls = payload.iterations(size, quick=level is Level.QUICK) + _OTHER_CALLS
        return max(size, payload.LATENCY_BOUND_BYTES) * calls

    per_amount, needed = previous / amount(left[0] // 4), [0.0]
    for size in left:
        needed.append(max(needed[-1], _time_needed(spent, previous, size)))
        previous = per_amount * amount(size)
        spent += previous
    return tuple(needed[1:])


def bytes_needed(row: Collective, size: int, ranks_on_cpus: int | None) -> int:
    """Return the memory needed for a size: twice the payload, three times if not in place, and some to check the
    result.

    On a host, four times that for each rank, because gloo makes its own copies.

    ``ranks_on_cpus`` is the number of ranks that share the host's memory, or None on a GPU.
    """
    own = (2 if row.in_place else 3) * size
    return own + _TO_COMPARE_BYTES if ranks_on_cpus is None else 4 * own * max(ranks_on_cpus, 1)


def memory_needed(ctx: RankContext, row: Collective, size: int) -> int:
    """Return the bytes needed on the rank's GPU, or on the host for all ranks."""
    return bytes_needed(row, size, None if ctx.device.startswith("cuda") else ctx.world_size)


def memory_free(ctx: RankContext) -> int:
    """Return the free bytes of the rank's share of its GPU, or of the host."""
    if ctx.device.startswith("cuda"):
        return ctx.gpu_memory_bytes
    import psutil

    return int(psutil.virtual_memory().available)


def agreed(ctx: RankContext, value: float, *, of_first: bool = False) -> float:
    """Return the maximum over all ranks, or the first rank's value, so that all ranks decide alike."""
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


def measure(
    ctx: RankContext, size: int, row: Collective = TABLE[ALL_REDUCE], *, is_in_place: bool = False
) -> SizeResult:
    """Time calls of about ``size`` bytes, as many as the options or the level ask for, then check one."""
    warmup = ctx.options.warmup if ctx.part and ctx.options.warmup is not None else 1
    return timed(ctx, row, size, _iterations(ctx, size), warmup=warmup, is_in_place=is_in_place)


def _iterations(ctx: RankContext, size: int) -> int:
    return (ctx.options.iters if ctx.part else None) or payload.iterations(size, quick=ctx.level is Level.QUICK)
