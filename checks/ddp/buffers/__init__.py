"""buffers: does DistributedDataParallel give every rank rank 0's parameters and buffers?

What the probe reads on each rank is the state of a small model that every rank filled with its own stamp
(rank 0 with 1, rank 1 with 2, …)::

                                     before wrapping   after wrapping   stamped anew   after a forward
    weight, rank 1                   2. 2. 2. …        1. 1. 1. …       -              -
    float_stamp, rank 1              2. 2. 2. …        1. 1. 1. …       2. 2. 2. …     1. 1. 1. …
    norm.running_mean, rank 1        0. 0. 0.          0. 0. 0.         -              1. 2. 3.

The batches are known in closed form too: after one forward the running mean of BatchNorm must be half of
the rank's own (momentum 0.5), the next starts from rank 0's, and SyncBatchNorm's is that of all ranks.
From level standard on it also wraps with broadcasting off, gives a buffer a new tensor after wrapping, and
times what the broadcast adds to a forward.

Why it matters: ranks that start from different weights train different models. When running statistics drift
apart, the saved model (rank 0's) evaluates worse than its training losses suggest.
"""

import inspect
from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import median
from typing import Any

from ddp_doctor.checks.ddp.buffers import rules
from ddp_doctor.facts.ddp.model_state import BroadcastCost, Buffers, OffState
from ddp_doctor.knowledge.ddp.payload import CROWD
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in

CHANNELS = 3
#: Deviations of a batch from its mean: sum 0, sum of squares 10, so variance 2 (biased) or 2.5.
_DEVIATIONS = (-2, -1, 0, 1, 2)
MOMENTUM = 0.5  # exact in binary, unlike torch's default of 0.1
#: Mean and unbiased variance of each channel.
Statistics = tuple[list[float], list[float]]
START: Statistics = ([0.0] * CHANNELS, [1.0] * CHANNELS)  # of a new BatchNorm


def batch(place: int, device: str) -> Any:
    """The batch of one group rank, shape (5, CHANNELS): mean (rank+1)(channel+1), variance 2(rank+1)²."""
    import torch

    rows = [[channel + 1 + deviation for channel in range(CHANNELS)] for deviation in _DEVIATIONS]
    return (place + 1) * torch.tensor(rows, dtype=torch.float32, device=device)


def of_rank(place: int) -> Statistics:
    """Mean and unbiased variance of the batch of one group rank."""
    means = [float((place + 1) * (channel + 1)) for channel in range(CHANNELS)]
    return means, [2.5 * (place + 1) ** 2] * CHANNELS


def overall(ranks: int) -> Statistics:
    """Mean and unbiased variance over the batches of all ranks."""
    elements = ranks * len(_DEVIATIONS)
    means, biased = overall_biased(ranks)
    return means, [variance * elements / (elements - 1) for variance in biased]


def overall_biased(ranks: int) -> Statistics:
    """Mean and biased variance over the batches of all ranks: what SyncBatchNorm normalises with."""
    square = sum((place + 1) ** 2 for place in range(ranks)) / ranks
    means = [(channel + 1) * (ranks + 1) / 2 for channel in range(CHANNELS)]
    return means, [square * (2 + (channel + 1) ** 2) - means[channel] ** 2 for channel in range(CHANNELS)]


def of_rank_biased(place: int) -> Statistics:
    """Mean and biased variance of the batch of one group rank: what BatchNorm normalises with."""
    means, _ = of_rank(place)
    return means, [2.0 * (place + 1) ** 2] * CHANNELS


def normalised(place: int, statistics: Statistics) -> list[float]:
    """The batch of one group rank less the mean, over the deviation, row by row (torch's epsilon: 1e-5)."""
    means, variances = statistics
    return [
        ((place + 1) * (channel + 1 + deviation) - means[channel]) / sqrt(variances[channel] + 1e-5)
        for deviation in _DEVIATIONS
        for channel in range(CHANNELS)
    ]


def updated(running: Statistics, latest: Statistics) -> Statistics:
    """Running statistics after one more batch."""
    means, variances = (
        [(1 - MOMENTUM) * old + MOMENTUM * new for old, new in zip(olds, news, strict=True)]
        for olds, news in zip(running, latest, strict=True)
    )
    return means, variances


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
        return DistributedDataParallel(module, process_group=ctx.group)


def measure(ctx: RankContext, model: Any) -> Buffers:
    """The state of a DDP-wrapped ``stamped_model`` after each step, in training mode."""
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
    # A norm that was wrong before shows nothing about the broadcast.
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
    return tuple(tensor.model_copy(update={"from_rank": rank}) for tensor in off)


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


def _off(name: str, tensor: Any, expected: Sequence[float], relative: float, absolute: float = 0.0) -> OffState | None:
    """The worst element beyond the tolerance, None where all are right."""
    import torch

    values, wanted = tensor.detach().double().cpu(), torch.tensor(expected, dtype=torch.float64)
    error = (values - wanted).abs().nan_to_num(nan=torch.inf)
    if bool((error <= relative * wanted.abs() + absolute).all()):
        return None
    worst = int(error.argmax())
    got = float(values[worst]) if bool(values[worst].isfinite()) else None
    return OffState(name=name, expected=float(wanted[worst]), got=got)


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
    """Many CPU ranks on one node: the time of a broadcast then depends on the node's other ranks."""
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


def probe(ctx: RankContext) -> Buffers:
    """Wrap stamped models in DDP and compare their state with its closed form."""
    fact = measure(ctx, wrap(ctx, stamped_model(ctx)))
    if ctx.level.includes(Level.STANDARD):
        fact = measure_options(ctx, fact)
    if not ctx.device.startswith("cuda"):
        reason = "SyncBatchNorm works on accelerators only, and these ranks are on the CPU"
        return fact.model_copy(update={"sync_batch_norm_reason": reason})
    import torch

    kind: Any = torch.nn.SyncBatchNorm  # its methods have no types
    model = wrap(ctx, kind.convert_sync_batchnorm(stamped_model(ctx), ctx.group))
    return fact.model_copy(update=measure_sync_batch_norm(ctx, model))


def measurements(recording: Recording) -> Iterator[Measurement]:
    """What the broadcast of a convolutional net's buffers adds to each forward, on the slowest rank."""
    costs = [rank.fact.cost for rank in recording.facts(Buffers) if rank.fact.cost]
    if costs:
        slowest = max(max(cost.on_s - cost.off_s, 0.0) for cost in costs)
        labels: dict[str, str | int | float] = {"ranks": len(costs), "bytes": costs[0].size_bytes}
        yield Measurement(name="buffer_broadcast", value=slowest, unit="s", labels=labels)


CHECK = Check(
    id="buffers",
    title="DDP broadcasts parameters and buffers",
    where=Where.RANK,
    probe=probe,
    facts=(Buffers,),
    rules=rules_in(rules),
    level=Level.QUICK,
    min_ranks=2,
    measurements=measurements,
)
