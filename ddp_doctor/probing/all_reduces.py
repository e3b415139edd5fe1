"""How fast is a collective, over sizes, and what nccl-tests makes of the measured ("algorithm") bandwidth.

``algbw`` is bytes / time. A rank must move more than that over its link, depending on the number of ranks;
``busbw`` corrects for it, so that one number can be compared with the rate of the hardware whatever the world size.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md ("Bus bandwidth", Summary).
With in-network reduction (NVLink SHARP) the switch adds, and the busbw may exceed the link.
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

#: Of a check's time that is left, how much the sizes may take.
_SHARE_OF_CHECK = 0.6
#: Seconds for the sizes within the usual budget.
_TIME_FOR_SIZES = MappingProxyType({Level.QUICK: 0.25, Level.STANDARD: 1.0, Level.THOROUGH: 5.0})

#: The most that a budget brings: the check has 10 s, of which the types take some.
_MOST_FOR_SIZES_S = _SHARE_OF_CHECK * 9.0
#: What a size takes besides its repetitions, in repetitions: new memory, the first call and the check of one. Measured
#: with gloo on two cores: 5 to 9 from 16 MiB on.
_OTHER_CALLS = 6
#: On the device, beside the tensors of a call, while its result is looked at; measured: 10 MiB.
_TO_COMPARE_BYTES = 16 << 20
#: What a rank is short of; the greater one is told.
_TIME, _MEMORY = 1.0, 2.0


class Sweep(NamedTuple):
    """The sizes that were measured; if not all, the first of the rest, what was short, and how much would do."""

    sizes: list[SizeResult]
    stopped_at: int | None = None
    short_of: Literal["time", "memory"] | None = None
    needs: tuple[float, ...] = ()  # for each size that was left out: seconds, or bytes of free memory


def bandwidth(ctx: RankContext, row: Collective = TABLE[ALL_REDUCE], sizes: Sequence[int] = ()) -> Sweep:
    """These sizes, or else 4 B and 1 KiB to 256 MiB by fours, until the ranks agree that time or memory is short.

    What may be held against an expectation, on GPUs and where many collectives are measured, is measured twice at its
    largest size: the faster one counts.
    """
    # Who gives a run more than the usual budget gives more to the sizes; ten collectives have a second each.
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
        short_of = agreed(ctx, _MEMORY if not fits else 0.0 if in_time else _TIME)  # the slowest rank decides for all
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
    """Whether all ranks agree that there is time to measure the same again."""
    return not agreed(ctx, float(not _fits(ctx, result, result.size_bytes)))


def _fits(ctx: RankContext, result: SizeResult, size: int) -> bool:
    """Whether a size fits what is left of the deadline, by what a call of a smaller one took."""
    calls = _iterations(ctx, size) + (ctx.options.warmup or 1) + _OTHER_CALLS
    took_s = (result.mean_us or result.time_us) / 1e6 * max(size / max(result.size_bytes, 1), 1.0)
    return calls * took_s < ctx.remaining() * _SHARE_OF_CHECK


def faster(one: SizeResult, other: SizeResult) -> SizeResult:
    """The faster of two measurements of the same; what either found wrong stays wrong."""
    best = min(one, other, key=lambda result: result.time_us)
    return best.model_copy(update={"again": True, "wrong": max(one.wrong, other.wrong)})


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


def _time_for_each(level: Level, left: Sequence[int], spent: float, previous: float) -> tuple[float, ...]:
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


def bytes_needed(row: Collective, size: int, ranks_on_cpus: int | None) -> int:
    """Twice the payload, thrice where it is not in place, and a little to look at the result.

    On a host four times the payload's, for each rank: gloo has its own.

    ``ranks_on_cpus`` share the host's memory; None on a GPU.
    """
    own = (2 if row.in_place else 3) * size
    return own + _TO_COMPARE_BYTES if ranks_on_cpus is None else 4 * own * max(ranks_on_cpus, 1)


def memory_needed(ctx: RankContext, row: Collective, size: int) -> int:
    """Bytes on the rank's GPU, or on the host of all ranks."""
    return bytes_needed(row, size, None if ctx.device.startswith("cuda") else ctx.world_size)


def memory_free(ctx: RankContext) -> int:
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


def measure(
    ctx: RankContext, size: int, row: Collective = TABLE[ALL_REDUCE], *, is_in_place: bool = False
) -> SizeResult:
    """Time as many calls of about ``size`` bytes as the options or the level ask for, then check one."""
    warmup = ctx.options.warmup if ctx.part and ctx.options.warmup is not None else 1
    return timed(ctx, row, size, _iterations(ctx, size), warmup=warmup, is_in_place=is_in_place)


def _iterations(ctx: RankContext, size: int) -> int:
    return (ctx.options.iters if ctx.part else None) or payload.iterations(size, quick=ctx.level is Level.QUICK)
