"""Timing loops: a device's work by the device's own clock, repeated, within a time that is bounded."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from ddp_doctor.facts.collectives import Rate
from ddp_doctor.model.context import RankContext

Work = Callable[[], object]

#: Of a clock that stood still: one that is read twice within its own resolution.
_LEAST_S = 1e-9


@dataclass(frozen=True)
class Plan:
    """How long to measure: repetitions of ``aim_s`` each, after a warm-up."""

    warm_up_s: float
    aim_s: float
    repetitions: int = 7
    fewest: int = 3  # however long they take


def rate(ctx: RankContext, once: Work, amount: float, plan: Plan) -> Rate:
    """``amount`` per second of the work ``once``, repeated. Call inside a step."""
    seconds(ctx, once, 1)  # loads libraries and kernels
    started, calls = ctx.clock(), 1
    spent = seconds(ctx, once, calls)
    while ctx.clock() - started < plan.warm_up_s:
        calls = _calls(plan.aim_s, spent / calls)
        spent = seconds(ctx, once, calls)
    calls = _calls(plan.aim_s, spent / calls)
    until = ctx.clock() + 2 * plan.aim_s * plan.repetitions
    rates: list[float] = []
    while len(rates) < plan.repetitions and (len(rates) < plan.fewest or ctx.clock() < until):
        rates.append(amount * calls / seconds(ctx, once, calls))
    return Rate(median=median(rates), least=min(rates), most=max(rates), repetitions=len(rates))


def _calls(aim_s: float, one_s: float) -> int:
    return max(round(aim_s / one_s), 1)


def seconds(ctx: RankContext, once: Work, calls: int) -> float:
    """How long the device takes for ``calls`` calls that are handed to it at once."""
    if not ctx.device.startswith("cuda"):
        started = ctx.clock()
        for _ in range(calls):
            once()
        return max(ctx.clock() - started, _LEAST_S)
    import torch

    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        once()
    end.record()
    end.synchronize()
    return max(float(begin.elapsed_time(end)) / 1e3, _LEAST_S)
