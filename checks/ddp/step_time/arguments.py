"""What a trace advises, tried: steps with DDP's arguments as the job has them, and with one of them changed."""

import gc
from dataclasses import replace
from functools import partial
from typing import Any

from ddp_doctor.checks.ddp.step_time.work import Plan, Work, in_turns, one_pass, timed, wrap
from ddp_doctor.facts.ddp.step_time import ArgumentTrial
from ddp_doctor.knowledge.ddp.arguments import changed, copes_with_unused
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import TraceAdvice
from ddp_doctor.probing.all_reduces import agreed

#: For a proof, see advised.py.
_FEWEST, _ROUNDS = 5, 9
#: Short steps are timed several at a time, as a training makes them.
_AT_ONCE_S, _AT_ONCE = 0.05, 10


def tried(ctx: RankContext, work: Work, ddp: Any, plan: Plan) -> tuple[ArgumentTrial, ...]:
    """Each change of ``--from-trace`` against ``ddp``, which has the job's arguments."""
    return tuple(_tried(ctx, work, ddp, plan, advice) for advice in ctx.options.advice)


def _tried(ctx: RankContext, work: Work, ddp: Any, plan: Plan, advice: TraceAdvice) -> ArgumentTrial:
    options = changed(work.options, advice)
    step_s = agreed(ctx, timed(ctx, "step", "before a change", partial(one_pass, work, ddp), 1))
    longest_s = -agreed(ctx, -min(plan.longest_s, ctx.remaining() / 4))
    why_not = ""
    if ctx.world_size == 1:
        why_not = "one rank has nobody to communicate with"
    elif options == work.options:
        why_not = "neither the trace nor the factory tells what the job has"
    elif work.copies < 2:
        why_not = "the GPU has no memory for the model in a second DDP"
    elif work.unused and not copes_with_unused(options):
        why_not = "some parameters get no gradient, which DDP would wait for"
    elif 2 * _FEWEST * step_s > longest_s:
        why_not = f"{2 * _FEWEST} steps would take {2 * _FEWEST * step_s:.0f} s"
    if why_not:
        return ArgumentTrial(advice=advice, not_tried=why_not)
    models = {"as the job": ddp, "changed": wrap(ctx, replace(work, options=options), None)}
    times = max(1, min(_AT_ONCE, int(_AT_ONCE_S / step_s)))
    rounds = max(_FEWEST, min(_ROUNDS, int(plan.budget_s / (2 * times * step_s))))
    took = in_turns(ctx, work, models, rounds, times)
    del models
    gc.collect()  # the next one needs its memory
    return ArgumentTrial(advice=advice, without_s=took["as the job"], with_s=took["changed"])
