"""The user's own model as the work of checks that time steps."""

import gc
from typing import Any

from ddp_doctor.features.model.user_model.probing import batches
from ddp_doctor.features.model.user_model.probing.probe import ModelProbe, Stopped
from ddp_doctor.knowledge.ddp.arguments import as_the_job_has_them, copes_with_unused
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.work import Work
from ddp_doctor.probing.all_reduces import agreed

#: For fragmentation and library workspaces, in addition to the tensors.
_SLACK = 1.1
_MOST_COPIES = 2


def yours(ctx: RankContext) -> Work:
    """Return a fresh model of the user's and the first rank's batch. Raises Skip and Failed."""
    gc.collect()  # frees user_model's copy of the model before memory is measured
    if ctx.device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats()
    probe = ModelProbe(ctx)
    try:
        loaded = probe.load()
        if probe.sharded:
            raise Skip(f"{ctx.model} is sharded by fully_shard, but only DDP steps are timed")
        given, unused = probe.ready(loaded)
    except Stopped:
        raise Skip(f"{ctx.model} does not work with DDP; the user_model check reports why") from None
    if not given:
        raise Skip(f"{ctx.model} does not return make_batch, so the inputs are unknown")
    options = as_the_job_has_them(loaded.options, ctx.options.advice)
    if unused and not copes_with_unused(options):
        raise Skip(f"some parameters of {ctx.model} never get gradients, but DDP waits for them (DD775, DD776)")
    batch = given[0]
    common = batches.common(ctx, batch)
    return Work(
        module=loaded.model,
        batch=common or batch,
        loss=lambda module, batch: batch.loss(batch.forward(module)),
        name=ctx.model,
        options=options,
        unused=unused,
        copies=_copies(ctx, loaded.model),
        alike=common is not None,
    )


def _copies(ctx: RankContext, model: Any) -> int:
    """Return how many DDP copies fit in addition to the model, estimated from the peak memory of its own pass.

    Raises Skip if none fits on some rank.
    """
    if not ctx.device.startswith("cuda"):
        return _MOST_COPIES
    import torch

    state = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    left = ctx.gpu_memory_bytes - _SLACK * (torch.cuda.max_memory_allocated() + gradients)
    fit = int(left // (_SLACK * (state + 2 * gradients)))  # a gradient, and its place in a bucket
    copies = -int(agreed(ctx, float(-max(min(fit, _MOST_COPIES), 0))))
    if not copies:
        raise Skip("a second copy of the model does not fit in the GPU memory that ddp-doctor may use")
    return copies
