"""Looks beyond DDP's defaults: broadcasting off, a buffer with a new tensor, and what a broadcast costs."""

import inspect
from statistics import median
from typing import Any

from ddp_doctor.checks.ddp.buffers.stamps import forward, stamp_off, stamped_model
from ddp_doctor.facts.ddp.model_state import BroadcastCost, Buffers
from ddp_doctor.knowledge.ddp.payload import CROWD
from ddp_doctor.model.context import RankContext

#: The BatchNorm layers of a ResNet-50, and the mean number of their channels (26 560 in all).
_LAYERS, _CHANNELS = 53, 501
_FORWARDS = 5
_STAMPS = ("float_stamp", "int_stamp")


def measure_options(ctx: RankContext, fact: Buffers) -> Buffers:
    """The fact with what the options of DDP make of buffers."""
    silent = wrapped(ctx, stamped_model(ctx), broadcast=False)
    for name in _STAMPS:
        getattr(silent.module, name).fill_(ctx.group_rank + 1)
    forward(ctx, silent, "broadcasting off")
    kept = [stamp_off(ctx, name, getattr(silent.module, name), ctx.group_rank) for name in _STAMPS]
    model = wrapped(ctx, stamped_model(ctx), broadcast=True)
    reassign(ctx, model.module)
    forward(ctx, model, "a new tensor as buffer")
    reassigned = stamp_off(ctx, "float_stamp", model.module.float_stamp)
    return fact.model_copy(
        update={
            "kept_off": tuple(off for off in kept if off),
            "reassigned_off": (reassigned,) if reassigned else (),
            "cost": None if is_crowded(ctx) else _cost(ctx),
        }
    )


def is_crowded(ctx: RankContext) -> bool:
    """Many CPU ranks on one node: a broadcast then costs what the node's other ranks leave it."""
    return ctx.world_size > CROWD and ctx.device == "cpu"


def wrapped(ctx: RankContext, module: Any, *, broadcast: bool) -> Any:
    """The module in DDP, with or without the broadcast of buffers before each forward."""
    from torch.nn.parallel import DistributedDataParallel

    # torch 2.13 has renamed the option, and warns of the old name.
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {} if broadcast else {name: False}
    with ctx.step("ddp_construct", "broadcasting on" if broadcast else "broadcasting off"):
        return DistributedDataParallel(module, process_group=ctx.group, **options)


def reassign(ctx: RankContext, module: Any) -> None:
    """A new tensor with this rank's stamp under the name of a buffer, as users' forwards write it."""
    import torch

    module.float_stamp = torch.full_like(module.float_stamp, ctx.group_rank + 1.0)


def _cost(ctx: RankContext) -> BroadcastCost:
    """A forward with broadcasting on and one with it off, in turns."""
    on, off = (wrapped(ctx, _many_buffers(ctx), broadcast=broadcast) for broadcast in (True, False))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(_FORWARDS):
        for broadcast, model in ((True, on), (False, off)):
            seconds[broadcast].append(_timed(ctx, model))
    size = sum(buffer.numel() * buffer.element_size() for buffer in on.module.buffers())
    return BroadcastCost(on_s=median(seconds[True]), off_s=median(seconds[False]), size_bytes=size)


def _timed(ctx: RankContext, model: Any) -> float:
    with ctx.step("forward", "timed"):
        started = ctx.clock()
        model(1.0).item()
    return ctx.clock() - started


def _many_buffers(ctx: RankContext) -> Any:
    """A module with the buffers of a convolutional net, whose forward computes next to nothing."""
    import torch

    class Scale(torch.nn.Module):
        weight: torch.nn.Parameter

        def forward(self, factor: float) -> Any:
            return (self.weight * factor).sum()

    model = Scale()
    model.weight = torch.nn.Parameter(torch.ones(1))
    for layer in range(_LAYERS):
        model.register_buffer(f"mean{layer}", torch.zeros(_CHANNELS))
        model.register_buffer(f"var{layer}", torch.ones(_CHANNELS))
        model.register_buffer(f"batches{layer}", torch.zeros((), dtype=torch.int64))
    return model.to(ctx.device)
