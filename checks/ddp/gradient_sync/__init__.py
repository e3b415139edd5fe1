"""gradient_sync: does DistributedDataParallel give every rank the mean of all ranks' gradients?

What the probe reads on each rank is the ``.grad`` of a small DDP-wrapped model after ``backward()``::

    parameter weight3, 8195 elements, bucket cap 32 KiB, 2 ranks
      local gradient, rank 0    12. 4. 12. 4. …    (known in closed form: knowledge/ddp/gradient_code.py)
      local gradient, rank 1    4. 12. 4. 12. …
      .grad after backward()     8. 8. 8. 8. …      = the mean, on both ranks, bit for bit

The probe reads gradients after the first step (DDP's one big bucket), after a step inside ``no_sync()`` (the
gradient must stay the rank's own) and after the next step (several buckets; the mean of both steps' gradients).

Why it matters: no training job notices a wrong mean, and the loss still falls.
"""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.gradient_sync import rules
from ddp_doctor.checks.ddp.gradient_sync.steps import coded_model, measure, wrap
from ddp_doctor.facts.ddp.gradients import GradientSync
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in


def probe(ctx: RankContext) -> GradientSync:
    """Wrap a model in DDP and compare its gradients with their closed form."""
    started = ctx.clock()
    model = wrap(ctx, coded_model(ctx))
    return measure(ctx, model, ctx.clock() - started)


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Seconds of the slowest rank for wrapping, forward and backward."""
    facts = [rank.fact for rank in recording.facts(GradientSync)]
    labels: dict[str, str | int | float] = {"ranks": len(facts)}
    for name in ("ddp_construct", "forward", "backward") if facts else ():
        slowest = max(getattr(fact, f"{name}_s") for fact in facts)
        yield Measurement(name=f"gradient_sync_{name}", value=slowest, unit="s", labels=labels)


CHECK = Check(
    id="gradient_sync",
    title="DDP averages gradients",
    where=Where.RANK,
    probe=probe,
    facts=(GradientSync,),
    rules=rules_in(rules),
    is_essential=True,
    level=Level.QUICK,
    measurements=measurements,
)
