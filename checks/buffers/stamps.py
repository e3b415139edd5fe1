"""A model that every rank fills with its own stamp, and what DDP made of it."""

from collections.abc import Sequence
from typing import Any

from ddp_doctor.checks.buffers.closed_form import (
    CHANNELS,
    MOMENTUM,
    START,
    Statistics,
    batch,
    of_rank,
    overall,
    updated,
)
from ddp_doctor.checks.buffers.facts import Buffers, OffState
from ddp_doctor.model.context import RankContext

#: Relative error allowed in statistics. float32 rounds by 6e-8 an operation, and SyncBatchNorm's kernels
#: carry the variance as 1/sqrt; a rank's share in the statistics of n ranks is about 1/n.
_TOLERANCE = 1e-4


def stamped_model(ctx: RankContext) -> Any:
    """A torch module whose parameters and buffers hold this rank's stamp, with a BatchNorm."""
    import torch

    class Stamped(torch.nn.Module):
        """Parameters weight and bias, buffers float_stamp and int_stamp, a BatchNorm."""

        norm: torch.nn.Module
        weight: torch.nn.Parameter
        bias: torch.nn.Parameter

        def forward(self, batch: Any) -> Any:
            return self.norm(batch).sum() + self.weight.sum() + self.bias.sum()

    stamp, model = ctx.group_rank + 1, Stamped()
    model.weight = torch.nn.Parameter(torch.full((1000,), float(stamp)))
    model.bias = torch.nn.Parameter(torch.full((7,), float(stamp)))
    model.register_buffer("float_stamp", torch.full((500,), float(stamp)))
    model.register_buffer("int_stamp", torch.full((5,), stamp))
    model.norm = torch.nn.BatchNorm1d(CHANNELS, momentum=MOMENTUM)
    return model.to(ctx.device)


def wrap(ctx: RankContext, module: Any) -> Any:
    """The module in DistributedDataParallel, which broadcasts rank 0's state."""
    from torch.nn.parallel import DistributedDataParallel

    with ctx.step("ddp_construct", type(module.norm).__name__):
        model = DistributedDataParallel(module, process_group=ctx.group)
        module.weight.sum().item()  # waits for a GPU: a stuck broadcast hangs in this step
    return model


def measure(ctx: RankContext, model: Any) -> Buffers:
    """All looks at a DDP-wrapped ``stamped_model``, in training mode."""
    module, norm, place = model.module, model.module.norm, ctx.group_rank
    parameters_off = [_stamp_off(ctx, name, getattr(module, name)) for name in ("weight", "bias")]
    for buffer in (module.float_stamp, module.int_stamp):
        buffer.fill_(place + 1)
    _forward(ctx, model, "first")
    own = updated(START, of_rank(place))
    batch_norm_off = _norm_off(norm, own)
    _forward(ctx, model, "second")
    stamps_off = [_stamp_off(ctx, name, getattr(module, name)) for name in ("float_stamp", "int_stamp")]
    mixed = updated(updated(START, of_rank(0)), of_rank(place))
    # A norm that was wrong before says nothing of the broadcast.
    statistics_off = () if batch_norm_off else _norm_off(norm, mixed)
    return Buffers(
        world_size=ctx.world_size,
        source_rank=ctx.ranks[0],
        parameters_off=tuple(off for off in parameters_off if off),
        buffers_off=(*(off for off in stamps_off if off), *statistics_off),
        batch_norm_off=batch_norm_off,
    )


def measure_sync_batch_norm(ctx: RankContext, model: Any) -> tuple[OffState, ...]:
    """What is off in the statistics of a DDP-wrapped model whose ``norm`` synchronises."""
    _forward(ctx, model, "SyncBatchNorm")
    off = _norm_off(model.module.norm, updated(START, overall(ctx.world_size)))
    own = not _norm_off(model.module.norm, updated(START, of_rank(ctx.group_rank)))
    return tuple(one.model_copy(update={"from_rank": ctx.rank if own else None}) for one in off)


def _forward(ctx: RankContext, model: Any, detail: str) -> None:
    given = batch(ctx.group_rank, ctx.device)
    with ctx.step("forward", detail):
        model(given).item()


def _norm_off(norm: Any, expected: Statistics) -> tuple[OffState, ...]:
    pairs = zip(("running_mean", "running_var"), expected, strict=True)
    offs = (_off(f"norm.{name}", getattr(norm, name), values, _TOLERANCE) for name, values in pairs)
    return tuple(off for off in offs if off)


def _stamp_off(ctx: RankContext, name: str, tensor: Any) -> OffState | None:
    off = _off(name, tensor, [1.0] * tensor.numel(), 0.0)
    if off is None or off.got is None or off.got - 1 not in range(ctx.world_size):
        return off
    return off.model_copy(update={"from_rank": ctx.ranks[int(off.got) - 1]})


def _off(name: str, tensor: Any, expected: Sequence[float], relative: float) -> OffState | None:
    """The worst element beyond the tolerance, None where all are right."""
    import torch

    values, wanted = tensor.detach().double().cpu(), torch.tensor(expected, dtype=torch.float64)
    error = (values - wanted).abs().nan_to_num(nan=torch.inf)
    if bool((error <= relative * wanted.abs()).all()):
        return None
    worst = int(error.argmax())
    got = float(values[worst]) if bool(values[worst].isfinite()) else None
    return OffState(name=name, expected=float(wanted[worst]), got=got)
