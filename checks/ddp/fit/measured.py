"""DD872: fit --measure: three steps of each strategy that fits, on the ranks that are here, beside the estimate.

Raw input: none; measured on every rank. On a GPU ``torch.cuda.max_memory_allocated()``, on a CPU the allocations that
torch's profiler sees, from before the model is made::

    zero2    estimated 18.2 MiB    measured 18.9 MiB    steps 41.2, 12.5, 12.1 ms

An estimate that a few steps contradict is worth nothing; one that they confirm goes for more ranks and larger batches.
"""

import gc
from collections.abc import Iterator

from ddp_doctor.checks.ddp.fit import estimated
from ddp_doctor.facts.ddp.fit import FitFact, FitMeasuredFact
from ddp_doctor.knowledge import deadlines
from ddp_doctor.knowledge.ddp.strategies import BY_NAME, MEASURED_ABOVE, MEASURED_ABOVE_BYTES, RESERVE
from ddp_doctor.model.check import FIT_MEASURED, Check
from ddp_doctor.model.choices import Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.fit.measure import peak_bytes
from ddp_doctor.remedies.torch_calls import in_model_code
from ddp_doctor.views.fit import estimates, name_of, size
from ddp_doctor.wording.findings import NOBODY, proved

_STEPS = 3
_CHECKPOINTING = "+checkpointing"


def parts(options: Options) -> tuple[str, ...]:
    """Each strategy, without and with checkpointing, where --measure asks for it."""
    if options.fit is None or not options.fit.measure:
        return ()
    return tuple(f"{name}{more}" for name in BY_NAME for more in ("", _CHECKPOINTING))


def probe(ctx: RankContext) -> FitMeasuredFact:
    """Some steps under the strategy that is this part's turn. Raises Skip where it does not fit or work."""
    strategy, _, checkpointing = ctx.part.partition("+")
    of_first = () if ctx.group_rank else estimated(ctx).estimates
    each = next((e for e in of_first if (e.strategy, e.checkpointing) == (strategy, bool(checkpointing))), None)
    with ctx.step("compare_memory", ctx.part):
        needs = ctx.exchange(f"{ctx.part} needs", str(round(each.peak_bytes * (1 + RESERVE)) if each else ""))[0]
        room = min(map(int, ctx.exchange(f"{ctx.part} has", str(_room_bytes(ctx)))))
    if not needs or BY_NAME[strategy].within_node:
        raise Skip("not estimated" if not needs else "on one node it is zero3")
    if int(needs) > room:
        raise Skip(f"does not fit by the estimate: it needs {size(int(needs))} of {size(room)}")
    steps_s: list[float] = []
    gc.collect()
    try:
        peak = peak_bytes(ctx.device, lambda: _run_steps(ctx, strategy, bool(checkpointing), steps_s))
    except Exception as error:
        if "OutOfMemoryError" not in type(error).__name__:
            raise Skip(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
        peak = 0
    return FitMeasuredFact(
        strategy=strategy,
        checkpointing=bool(checkpointing),
        device=ctx.device,
        peak_bytes=peak,
        steps_s=tuple(steps_s),
        out_of_memory=len(steps_s) < _STEPS,
    )


def _room_bytes(ctx: RankContext) -> int:
    """What this rank may take: of --memory, and of what is free on its GPU or, shared by all ranks, on the host."""
    given = ctx.options.fit.memory_bytes if ctx.options.fit else None
    free = ctx.gpu_memory_bytes
    if not ctx.device.startswith("cuda"):
        import psutil

        free = psutil.virtual_memory().available // ctx.world_size
    return min(given or free, free)


def _run_steps(ctx: RankContext, strategy: str, checkpointing: bool, steps_s: list[float]) -> None:
    """Make the model anew, wrap it and make the steps; their seconds go to ``steps_s``."""
    raise NotImplementedError


@rule("DD872", "measured-above-the-estimate", Severity.WARNING, FitFact, FitMeasuredFact)
def above_the_estimate(recording: Recording) -> Iterator[Draft]:
    """A strategy that took more memory than was estimated for it.

    Finds: The highest peak of a rank in three steps is more than 10 % and more than 8 MiB above the estimate, or the
        steps ran out of memory although the estimate fits.
    Why: The other estimates of this model err the same way, so that what fits by them may not.
    Remedy: Take what was measured. What DD873 names is in no estimate; else the model's memory depends on values, or
        on something other than its tensors: please report it.
    See: docs/how-to/does-it-fit.md
    """
    for each in estimates(recording):
        measured = each.measured_bytes or 0
        excess = measured - each.peak_bytes
        if not each.measured_out_of_memory and (
            excess <= MEASURED_ABOVE * each.peak_bytes or excess <= MEASURED_ABOVE_BYTES
        ):
            continue
        took = "ran out of memory" if each.measured_out_of_memory else f"took {size(measured)}"
        yield proved(
            NOBODY,
            f"{recording.options.model} {took} under {name_of(each)}, and {size(each.peak_bytes)} were estimated",
            Evidence(
                text=f"peak of a rank under {name_of(each)}",
                value=round(measured / 2**20, 1),
                unit="MiB",
                expected=round(each.peak_bytes / 2**20, 1),
                expected_from="the estimate",
            ),
            in_model_code("Choose by what was measured, and leave more room for the strategies that were not"),
        )


CHECK = Check(
    id=FIT_MEASURED,
    title="Steps of the strategies that fit, beside the estimates",
    where=Where.RANK,
    probe=probe,
    facts=(FitMeasuredFact,),
    rules=(above_the_estimate,),
    cost_s=20.0,
    deadline_s=deadlines.FIT_STEPS_S,
    still_s=deadlines.STILL_S,
    needs_model=True,
    parts=parts,
    parts_by="--measure",
)
