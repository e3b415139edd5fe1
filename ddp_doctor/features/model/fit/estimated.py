"""fit: whether the user's model fits in the memory of a GPU, and with which strategy.

Raw input: none. The first rank makes the model on fake tensors, which have shapes but no memory, and computes the peak
memory of a step for each strategy::

    ddp                         parameters 27 GB, gradients 27 GB, optimizer 54 GB, buckets 27 GB, activations 11 GB
    zero3 with checkpointing    parameters 3.4 GB, gradients 3.4 GB, optimizer 6.7 GB, unsharded 1.6 GB, ...

Why it matters: most jobs that run out of memory do so in their second step, when the optimizer has its state, after
minutes in a queue. These sums alone show which of DDP, ZeRO and FSDP a model needs.
"""

from functools import cache

from ddp_doctor.features.model.fit.facts import FitFact
from ddp_doctor.features.model.fit.probing.estimate import estimate
from ddp_doctor.features.model.fit.rules import chosen_does_not_fit, does_not_come_back, no_strategy_fits
from ddp_doctor.features.model.fit.views import FIT
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Misused, Skip
from ddp_doctor.model.recording import FitOptions

#: Seconds: 7 billion parameters take 20 s of processor time, and the machine may be busy.
_DEADLINE_S = 120.0

_estimate = cache(estimate)


def estimated(ctx: RankContext) -> FitFact:
    """Return the estimates for the requested job, made once per process."""
    import torch

    options = ctx.options.fit or FitOptions()
    gpus = torch.cuda.device_count()
    there = ctx.world_size if options.measure else gpus
    ranks = options.ranks or there or 2
    return _estimate(
        ctx.model,
        ranks=ranks,
        ranks_per_node=ctx.world_size if options.measure else options.ranks_per_node or gpus or min(ranks, 8),
        precision=options.precision,
        device=ctx.device.partition(":")[0] if options.measure else "cuda",
        batch=options.batch,
        sequence=options.seq,
    )


def probe(ctx: RankContext) -> FitFact:
    """Estimate on the first rank while the others wait for it. Raises Misused if the user's code is unusable."""
    if ctx.group_rank:
        with ctx.step("wait_for_estimate"):
            ctx.exchange("estimated", "")
        raise Skip("the first rank makes the estimate for all ranks")
    try:
        fact = estimated(ctx)
    finally:
        ctx.exchange("estimated", "")
    if trouble := fact.trouble:
        at = f" at {trouble.where}" if trouble.where else ""
        raise Misused(
            trouble.message if trouble.misuse else f"its {trouble.phase} raises {trouble.type}{at}: {trouble.message}"
        )
    return fact


CHECK = Check(
    id=FIT,
    title="The model fits the memory of a GPU",
    where=Where.RANK,
    probe=probe,
    facts=(FitFact,),
    rules=(no_strategy_fits, chosen_does_not_fit, does_not_come_back),
    cost_s=5.0,
    deadline_s=_DEADLINE_S,
    still_s=deadlines.STILL_S,
    needs_model=True,
)
