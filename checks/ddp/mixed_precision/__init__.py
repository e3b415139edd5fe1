"""mixed_precision: do all ranks skip a step together, and does half precision keep the mean?

With a GradScaler each rank decides for itself whether its gradients are finite. Only DDP makes them decide the
same: an infinity on one rank reaches all ranks through the all-reduce::

    step   gradient of rank 1   stepped, all ranks   scale afterwards
    1      finite               yes                  4
    2      inf                  no                   2    (backoff_factor 0.5)
    3      finite               yes                  2

The steps run under autocast, on weights in float32; the gradient of the first is compared with its closed
form. At level thorough, models that are themselves in float16 and bfloat16 show what their gradients' mean
loses to rounding, and whether it overflows where only the sum would: DDP divides first, so 49152 on every
rank has the mean 49152 in float16, whose sum (98304 on two ranks) is beyond 65504.

Why it matters: a rank that skips alone trains another model from then on, and no error is raised.
"""

from ddp_doctor.checks.ddp.mixed_precision import half_rules, scaler_rules, steps
from ddp_doctor.facts.ddp.gradients import MixedPrecision
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.rule import rules_in


def probe(ctx: RankContext) -> MixedPrecision:
    """Take scaled steps, and at level thorough steps in half precision."""
    thorough = ctx.level.includes(Level.THOROUGH)
    first, second = ("float16", "bfloat16") if ctx.device.startswith("cuda") else ("bfloat16", "float16")
    return MixedPrecision(
        world_size=ctx.world_size,
        scaled=tuple(
            steps.measure_scaled(ctx, dtype) for dtype in ((first, second) if thorough else (first,))
        ),
        halves=tuple(steps.measure_half(ctx, dtype) for dtype in ((first, second) if thorough else ())),
    )


CHECK = Check(
    id="mixed_precision",
    title="Ranks skip and scale steps together",
    where=Where.RANK,
    probe=probe,
    facts=(MixedPrecision,),
    rules=rules_in(half_rules, scaler_rules),
    level=Level.STANDARD,
    min_ranks=2,
    cost_s=0.05,
)
