"""A model that every rank fills with its own stamp, and what DDP made of it."""

from collections.abc import Sequence
from typing import Any

from ddp_doctor.checks.ddp.buffers.closed_form import (
    CHANNELS,
    MOMENTUM,
    START,
    Statistics,
    batch,
    normalised,
    of_rank,
    of_rank_biased,
    overall,
    overall_biased,
    updated,
)
from ddp_doctor.facts.ddp.model_state import Buffers, OffState
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
            given = self.norm(batch)
            self.normalised = given.detach()
            return given.sum() + self.weight.sum() + self.bias.sum()

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
    parameters_off = [stamp_off(ctx, name, getattr(module, name)) for name in ("weight", "bias")]
    for buffer in (module.float_stamp, module.int_stamp):
        buffer.fill_(place + 1)
    forward(ctx, model, "first")
    normalised_off = _normalised_off(module, place, of_rank_biased(place))
    own = updated(START, of_rank(place))
    batch_norm_off = _norm_off(norm, own)
    forward(ctx, model, "second")
    stamps_off = [stamp_off(ctx, name, getattr(module, name)) for name in ("float_stamp", "int_stamp")]
    mixed = updated(updated(START, of_rank(0)), of_rank(place))
    # A norm that was wrong before says nothing of the broadcast.
    statistics_off = () if batch_norm_off else _norm_off(norm, mixed)
    return Buffers(
        world_size=ctx.world_size,
        source_rank=ctx.ranks[0],
        parameters_off=tuple(off for off in parameters_off if off),
        buffers_off=(*(off for off in stamps_off if off), *statistics_off),
        batch_norm_off=batch_norm_off,
        normalised_off=normalised_off,
    )


def measure_sync_batch_norm(ctx: RankContext, model: Any) -> dict[str, tuple[OffState, ...]]:
    """What is off in a DDP-wrapped model whose ``norm`` synchronises: fields of its fact."""
    forward(ctx, model, "SyncBatchNorm")
    module, place = model.module, ctx.group_rank
    off = _norm_off(module.norm, updated(START, overall(ctx.world_size)))
    own = not _norm_off(module.norm, updated(START, of_rank(place)))
    output = _normalised_off(module, place, overall_biased(ctx.world_size))
    alone = not _normalised_off(module, place, of_rank_biased(place))
    return {
        "sync_batch_norm_off": _from(ctx.rank if own else None, off),
        "sync_normalised_off": _from(ctx.rank if alone else None, output),
    }


def _from(rank: int | None, off: tuple[OffState, ...]) -> tuple[OffState, ...]:
    return tuple(one.model_copy(update={"from_rank": rank}) for one in off)


def forward(ctx: RankContext, model: Any, detail: str) -> None:
    """One forward with this rank's batch, and the wait for it."""
    given = batch(ctx.group_rank, ctx.device)
    with ctx.step("forward", detail):
        model(given).item()


def _norm_off(norm: Any, expected: Statistics) -> tuple[OffState, ...]:
    pairs = zip(("running_mean", "running_var"), expected, strict=True)
    offs = (_off(f"norm.{name}", getattr(norm, name), values, _TOLERANCE) for name, values in pairs)
    return tuple(off for off in offs if off)


def _normalised_off(module: Any, place: int, statistics: Statistics) -> tuple[OffState, ...]:
    """What the norm gave for this rank's batch in the last forward; its values are about 1."""
    expected = normalised(place, statistics)
    off = _off("norm's output", module.normalised.reshape(-1), expected, _TOLERANCE, _TOLERANCE)
    return (off,) if off else ()


def stamp_off(ctx: RankContext, name: str, tensor: Any, place: int = 0) -> OffState | None:
    """The tensor against the stamp of the group rank ``place``."""
    off = _off(name, tensor, [place + 1.0] * tensor.numel(), 0.0)
    if off is None or off.got is None or off.got - 1 not in range(ctx.world_size):
        return off
    return off.model_copy(update={"from_rank": ctx.ranks[int(off.got) - 1]})


def _off(
    name: str, tensor: Any, expected: Sequence[float], relative: float, absolute: float = 0.0
) -> OffState | None:
    """The worst element beyond the tolerance, None where all are right."""
    import torch

    values, wanted = tensor.detach().double().cpu(), torch.tensor(expected, dtype=torch.float64)
    error = (values - wanted).abs().nan_to_num(nan=torch.inf)
    if bool((error <= relative * wanted.abs() + absolute).all()):
        return None
    worst = int(error.argmax())
    got = float(values[worst]) if bool(values[worst].isfinite()) else None
    return OffState(name=name, expected=float(wanted[worst]), got=got)
