"""fit_measured: three steps of each strategy that fits, on this run's ranks (``fit --measure``).

Raw input: none; it is measured on every rank from before the model is made. On a GPU it is
``torch.cuda.max_memory_allocated()``, on a CPU the allocations that torch's profiler sees::

    zero2    estimated 18.2 MiB    measured 18.9 MiB    steps 41.2, 12.5, 12.1 ms

Why it matters: a few steps show whether the estimate is right. A confirmed estimate can be applied to more ranks and
larger batches.
"""

import gc
from functools import cache
from time import monotonic

from ddp_doctor.features.model.fit.estimated import estimated
from ddp_doctor.features.model.fit.facts import FitMeasuredFact
from ddp_doctor.features.model.fit.probing.measure import peak_bytes, run_steps
from ddp_doctor.features.model.fit.views import FIT_MEASURED, NO_TIME, size
from ddp_doctor.knowledge import deadlines
from ddp_doctor.knowledge.ddp.strategies import BY_NAME, RESERVE
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.recording import Options
from ddp_doctor.probing.all_reduces import memory_free

_CHECKPOINTING = "+checkpointing"
#: Seconds for a step under one strategy. The check itself stops after its time; STILL_S detects a hang.
_DEADLINE_S = 120.0


@cache
def _began() -> float:
    """Return when this process measured its first strategy."""
    return monotonic()


def parts(options: Options) -> tuple[str, ...]:
    """Return each strategy with and without checkpointing, or () without --measure."""
    if options.fit is None or not options.fit.measure:
        return ()
    return tuple(f"{name}{more}" for name in BY_NAME for more in ("", _CHECKPOINTING))


def probe(ctx: RankContext) -> FitMeasuredFact:
    """Run a few steps with the strategy of this part. Raises Skip if it does not fit or does not work."""
    strategy, _, checkpointing = ctx.part.partition("+")
    of_first = () if ctx.group_rank else estimated(ctx).estimates
    each = next((e for e in of_first if (e.strategy, e.checkpointing) == (strategy, bool(checkpointing))), None)
    # This rank's limit: --memory, and the free memory of its GPU or its share of the host's.
    free = memory_free(ctx) // (1 if ctx.gpu_memory_bytes else ctx.world_size)
    own_room = min(ctx.options.fit.memory_bytes or free, free) if ctx.options.fit else free
    with ctx.step("compare_memory", ctx.part):
        needs = ctx.exchange(f"{ctx.part} needs", str(round(each.peak_bytes * (1 + RESERVE)) if each else ""))[0]
        room = min(map(int, ctx.exchange(f"{ctx.part} has", str(own_room))))
        left_s = min(map(float, ctx.exchange(f"{ctx.part} time", str(ctx.budget_s - (monotonic() - _began())))))
    if not needs or (BY_NAME[strategy].offloads and ctx.device == "cpu"):
        raise Skip(
            "CPU offload requires ranks on GPUs"
            if needs
            else "this strategy has no estimate to compare with the free memory"
        )
    if int(needs) > room:
        raise Skip(f"does not fit: the estimate is {size(int(needs))}, but only {size(room)} are available")
    every = parts(ctx.options)
    most_s = left_s / (len(every) - every.index(ctx.part))
    if left_s <= 0:
        raise Skip(f"{NO_TIME}; --budget {2 * ctx.budget_s:g} gives it more")
    steps_s: list[float] = []
    out_of_memory = False
    gc.collect()
    try:
        peak = peak_bytes(
            ctx.device, lambda: run_steps(ctx, strategy, steps_s, checkpointing=bool(checkpointing), most_s=most_s)
        )
    except Exception as error:
        if "OutOfMemoryError" not in type(error).__name__:
            raise Skip(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
        peak, out_of_memory = 0, True
    return FitMeasuredFact(
        strategy=strategy,
        checkpointing=bool(checkpointing),
        peak_bytes=peak,
        steps_s=tuple(steps_s),
        out_of_memory=out_of_memory,
    )


CHECK = Check(
    id=FIT_MEASURED,
    title="Measured steps of the strategies that fit, with the estimates",
    where=Where.RANK,
    probe=probe,
    facts=(FitMeasuredFact,),
    cost_s=20.0,
    deadline_s=_DEADLINE_S,
    still_s=deadlines.STILL_S,
    needs_model=True,
    parts=parts,
    parts_by="--measure",
)
