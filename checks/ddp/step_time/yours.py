"""The user's own model as the work of a step, from ``--model``, where user_model's first phases find nothing wrong."""

import gc
from typing import Any

from ddp_doctor.checks.ddp.step_time.timing import agreed
from ddp_doctor.checks.ddp.step_time.work import Work
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.probing.user_model import batches
from ddp_doctor.probing.user_model.batches import Batch, loss_of
from ddp_doctor.probing.user_model.probe import ModelProbe, Ready, Stopped

#: Fragments and the workspaces of libraries, beyond what tensors take.
_SLACK = 1.1
_MOST_COPIES = 2


def is_given(ctx: RankContext) -> bool:
    """Whether the user named a model. Raises Skip where the nodes were given different ones."""
    with ctx.step("compare_names"):
        models = set(ctx.exchange("whose model", ctx.model))
    if len(models) > 1:
        raise Skip("not tested: the nodes were given different models, or none (DD770)")
    return models != {""}


def yours(ctx: RankContext) -> Work:
    """A fresh model of the user's and the first rank's batch. Raises Skip and Failed."""
    _forget_peak(ctx)
    probe = ModelProbe(ctx)
    try:
        ready = probe.ready()
    except Stopped:
        raise Skip(
            f"not tested: {ctx.model} does not go with DDP ({probe.seen['stopped']}), see user_model"
        ) from None
    _require_steps(ctx, ready)
    batch = ready.batches[0]
    common = batches.common(ctx, batch)
    return Work(
        module=ready.model,
        batch=common or batch,
        loss=_loss,
        name=ctx.model,
        options=ready.options,
        copies=_copies(ctx, ready.model),
        alike=common is not None,
    )


def _require_steps(ctx: RankContext, ready: Ready) -> None:
    """Raises Skip where the model in DDP could make no steps; the same on all ranks."""
    if not ready.batches:
        raise Skip(f"not measured: {ctx.model} returns no make_batch, and inputs are not guessed")
    copes = ready.options.get("find_unused_parameters") or ready.options.get("static_graph")
    if ready.unused and not copes:
        raise Skip(
            f"not tested: parameters of {ctx.model} get no gradient, which DDP waits for (DD775, DD776)"
        )


def _loss(module: Any, batch: Batch) -> Any:
    return loss_of(module(*batch.args, **batch.kwargs))


def _forget_peak(ctx: RankContext) -> None:
    """Memory counts from here on: user_model's copy of the model is let go."""
    gc.collect()
    if ctx.device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats()


def _copies(ctx: RankContext, model: Any) -> int:
    """How many copies in DDP fit beside the model, by what its own pass took at most.

    Raises Skip where none does on some rank.
    """
    if not ctx.device.startswith("cuda"):
        return _MOST_COPIES
    import torch

    state = sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))
    gradients = sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)
    left = ctx.gpu_memory_bytes - _SLACK * (torch.cuda.max_memory_allocated() + gradients)
    fit = int(left // (_SLACK * (state + 2 * gradients)))  # a gradient, and its place in a bucket
    copies = -int(agreed(ctx, float(-max(min(fit, _MOST_COPIES), 0))))
    if not copies:
        raise Skip("not measured: a second copy of the model does not fit the part of the GPU that is taken")
    return copies
