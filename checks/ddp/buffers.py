"""buffers: whether DistributedDataParallel gives every rank the parameters and buffers of rank 0.

Raw input: on each rank, the state of a small model that every rank filled with its own stamp (rank 0 with 1, rank 1
with 2, …)::

                                     before wrapping   after wrapping   stamped again   after a forward
    weight, rank 1                   2. 2. 2. …        1. 1. 1. …       -               -
    float_stamp, rank 1              2. 2. 2. …        1. 1. 1. …       2. 2. 2. …      1. 1. 1. …
    norm.running_mean, rank 1        0. 0. 0.          0. 0. 0.         -               1. 2. 3.

The batches are also known: after one forward, the running mean of BatchNorm must be half of the rank's batch mean
(momentum 0.5). The next forward starts from rank 0's, and SyncBatchNorm's mean is that of all ranks' batches. At level
standard or higher, the probe also wraps the model with broadcasting off, and replaces a buffer's tensor after wrapping.

Why it matters: ranks that start from different weights train different models. If running statistics drift apart, the
saved model (rank 0's) evaluates worse than its training losses suggest.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from ddp_doctor.facts.ddp.model_state import Buffers, OffState
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Consequence, Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.torch_calls import of_stock_ddp
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.ranks import rank_culprits, ranks_at

#: State that comes from rank 0 or, with broadcasting off, could only come from rank 0.
_BROADCAST = ("parameters_off", "buffers_off", "reassigned_off", "kept_off")
_FROM_RANK_0 = "rank {source}'s, broadcast by DDP"
_RankState = tuple[int, Buffers, tuple[OffState, ...]]  # rank, its fact, wrong tensors


def _drafts(recording: Recording, field: str, what: str, wanted: str) -> Iterator[Draft]:
    """Yield one draft for each kind of wrong values in ``field``: the rank's own, another rank's, no rank's."""
    states: list[_RankState] = [
        (rank.rank or 0, rank.fact, getattr(rank.fact, field) or ()) for rank in recording.facts(Buffers)
    ]
    wrong = [state for state in states if state[2]]
    # A rank with wrong values is to blame if another rank is right. The source of a broadcast receives nothing, so its
    # values are no evidence.
    sources = {fact.source_rank for _, fact, _ in wrong if field in _BROADCAST}
    receivers = {rank for rank, _, _ in wrong} - sources
    for holds, group in grouped((_holds(state), state) for state in wrong).items():
        rank, fact, off = group[0]
        some_right = len(receivers) < fact.world_size - len(sources)
        blamed = [rank for rank, _, _ in group] if some_right else []
        ranks = ranks_at(recording, [rank for rank, _, _ in group])
        names = sorted({tensor.name for _, _, offs in group for tensor in offs})
        held = holds if len(group) > 1 else holds.replace("each rank", "the rank")
        yield likely(
            rank_culprits(recording, Buffers, blamed),
            f"{what.format(ranks=ranks, source=fact.source_rank)}: {held}",
            Evidence(
                text=f"worst element of {off[0].name} on rank {rank}",
                value=off[0].got,
                expected=off[0].expected,
                expected_from=wanted.format(source=fact.source_rank),
            ),
            *of_stock_ddp(recording, "buffers"),
            detail=f"Wrong in ddp-doctor's own model: {', '.join(names)} on {ranks}. Your code was not involved.",
        )


def _holds(state: _RankState) -> str:
    rank, _, off = state
    origins = {tensor.from_rank for tensor in off if tensor.from_rank is not None}
    if origins == {rank}:
        return "each rank kept its own values"
    if len(origins) == 1:
        return f"they hold rank {origins.pop()}'s values"
    return "their values match no rank" if not origins else "their values come from several ranks"


@rule("DD711", "buffers-not-from-rank-0", Consequence.WRONG, Buffers)
def buffers_not_from_rank_0(recording: Recording) -> Iterator[Draft]:
    """Finds: A rank holds different buffers after a forward although DDP broadcasts rank 0's buffers before it, even if
        a buffer got a new tensor since (``self.running = new``). Also reported if the broadcast is off and a forward
        still overwrites a rank's buffers.
    Why: BatchNorm's running statistics and all other buffers drift apart between the ranks. The saved model is rank
        0's, which evaluates differently from the models that the other ranks trained.
    Remedy: This check does not run your code: look for code that replaces parts of torch. With NCCL, repeat it with
        NCCL_PROTO=Simple.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        https://github.com/pytorch/pytorch/issues/63916
    """
    yield from _drafts(
        recording, "buffers_off", "After a forward, buffers on {ranks} differ from rank {source}'s", _FROM_RANK_0
    )
    if not any(rank.fact.buffers_off for rank in recording.facts(Buffers)):  # otherwise, the first finding explains it
        what = "Replaced buffers on {ranks} differ from rank {source}'s"
        yield from _drafts(recording, "reassigned_off", what, _FROM_RANK_0)
    what = "Without buffer broadcast, buffers on {ranks} are overwritten"
    yield from _drafts(recording, "kept_off", what, "the rank's own")


@rule("DD712", "parameters-differ-after-wrapping", Consequence.WRONG, Buffers)
def parameters_differ_after_wrapping(recording: Recording) -> Iterator[Draft]:
    """Finds: A rank still holds different parameters after wrapping a model in DDP, which broadcasts rank 0's.
    Why: Equal gradients keep replicas equal only if they start equal. Otherwise each rank trains a different model, and
        DDP averages gradients that belong to different weights.
    Remedy: This check does not run your code: look for code that replaces parts of torch. With NCCL, repeat it with
        NCCL_PROTO=Simple.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    what = "After DDP wrapping, parameters on {ranks} differ from rank {source}'s"
    yield from _drafts(recording, "parameters_off", what, _FROM_RANK_0)


@rule("DD719", "batch-norm-wrong", Consequence.WRONG, Buffers)
def batch_norm_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: After a forward, BatchNorm's running mean or variance on a rank, or its output, does not match the rank's
        batch, or SyncBatchNorm's does not match all ranks' batches together.
    Why: Without SyncBatchNorm no network is involved: the rank's GPU or its torch computes wrong results in this and
        every other layer. SyncBatchNorm is used if a rank's batch is too small to normalize with. Without its exchange,
        the model trains on noise and the replicas drift apart.
    Remedy: This check does not run your code. Repeat it without this rank's GPU; with NCCL, also with
        NCCL_PROTO=Simple. Look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
        https://arxiv.org/abs/1502.03167
    """
    facts = [rank.fact for rank in recording.facts(Buffers)]
    for norm, statistics, outputs, batches in (
        ("BatchNorm", "batch_norm_off", "normalised_off", "the rank's own batch"),
        ("SyncBatchNorm", "sync_batch_norm_off", "sync_normalised_off", "the batches of all ranks"),
    ):
        # Wrong statistics explain wrong outputs.
        what, field = (
            ("statistics", statistics) if any(getattr(fact, statistics) for fact in facts) else ("outputs", outputs)
        )
        yield from _drafts(recording, field, f"{norm} {what} on {{ranks}} are wrong", f"closed form of {batches}")


CHANNELS = 3
#: Deviations of a batch from its mean: sum 0, sum of squares 10, so variance 2 (biased) or 2.5.
_DEVIATIONS = (-2, -1, 0, 1, 2)
#: Relative error allowed in statistics. float32 rounds by 6e-8 per operation, and SyncBatchNorm's kernels store the
#: variance as 1/sqrt. A rank's share in the statistics of n ranks is about 1/n.
_TOLERANCE = 1e-4
_STAMPS = ("float_stamp", "int_stamp")


def batch(*places: int) -> Any:
    """Return the batches of these group ranks, 5 rows each: mean (rank+1)(channel+1), variance 2(rank+1)²."""
    import torch

    rows = [[channel + 1 + deviation for channel in range(CHANNELS)] for deviation in _DEVIATIONS]
    return torch.cat([(place + 1) * torch.tensor(rows, dtype=torch.float64) for place in places])


def running(*batches: Any) -> dict[str, Any]:
    """Return the running statistics after these batches in order; a new BatchNorm has mean 0 and variance 1."""
    mean, variance = 0.0, 1.0
    for latest in batches:
        mean, variance = (mean + latest.mean(0)) / 2, (variance + latest.var(0)) / 2
    return {"running_mean": mean, "running_var": variance}


def stamped_model(ctx: RankContext) -> Any:
    """Return a torch module whose parameters and buffers hold this rank's stamp, with a BatchNorm."""
    import torch

    class Stamped(torch.nn.Module):
        """A model with parameters weight and bias, buffers float_stamp and int_stamp, and a BatchNorm."""

        norm: torch.nn.Module
        weight: torch.nn.Parameter
        bias: torch.nn.Parameter

        def forward(self, batch: Any) -> Any:
            given = self.norm(batch)
            self.normalized = given.detach()
            return given.sum() + self.weight.sum() + self.bias.sum()

    stamp, model = ctx.group_rank + 1, Stamped()
    model.weight = torch.nn.Parameter(torch.full((1000,), float(stamp)))
    model.bias = torch.nn.Parameter(torch.full((7,), float(stamp)))
    model.register_buffer("float_stamp", torch.full((500,), float(stamp)))
    model.register_buffer("int_stamp", torch.full((5,), stamp))
    model.norm = torch.nn.BatchNorm1d(CHANNELS, momentum=0.5)  # exact in binary, unlike torch's default of 0.1
    return model.to(ctx.device)


def wrap(ctx: RankContext, module: Any, *, broadcast: bool = True) -> Any:
    """Wrap the module in DistributedDataParallel; ``broadcast``: also broadcast rank 0's buffers before forwards."""
    from torch.nn.parallel import DistributedDataParallel

    # torch 2.13 renamed the option, and warns about the old name.
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {} if broadcast else {name: False}
    with ctx.step("ddp_construct", f"{type(module.norm).__name__}, broadcasting {'on' if broadcast else 'off'}"):
        return DistributedDataParallel(module, process_group=ctx.group, **options)


def measure(ctx: RankContext, model: Any) -> Buffers:
    """Return the state of a DDP-wrapped ``stamped_model`` after each step, in training mode."""
    module, own = model.module, batch(ctx.group_rank)
    parameters_off = _stamps_off(ctx, module, ("weight", "bias"))
    _stamp(ctx, module)
    _forward(ctx, model, "first")
    batch_norm_off, normalised_off = _norm_off(module, running(own)), _normalised_off(module, own, own)
    _forward(ctx, model, "second")
    # A norm that was already wrong shows nothing about the broadcast.
    statistics_off = () if batch_norm_off else _norm_off(module, running(batch(0), own))
    return Buffers(
        world_size=ctx.world_size,
        source_rank=ctx.ranks[0],
        parameters_off=parameters_off,
        buffers_off=(*_stamps_off(ctx, module), *statistics_off),
        batch_norm_off=batch_norm_off,
        normalised_off=normalised_off,
    )


def measure_sync_batch_norm(ctx: RankContext, model: Any) -> dict[str, tuple[OffState, ...]]:
    """Return the wrong state of a DDP-wrapped model whose ``norm`` synchronizes, as fields of the fact."""
    _forward(ctx, model, "SyncBatchNorm")
    module, own, every = model.module, batch(ctx.group_rank), batch(*range(ctx.world_size))
    alone = not _norm_off(module, running(own)), not _normalised_off(module, own, own)
    off = _norm_off(module, running(every)), _normalised_off(module, own, every)
    named = [
        tuple(tensor.model_copy(update={"from_rank": ctx.rank if its_own else None}) for tensor in tensors)
        for its_own, tensors in zip(alone, off, strict=True)
    ]
    return dict(zip(("sync_batch_norm_off", "sync_normalised_off"), named, strict=True))


def measure_options(ctx: RankContext) -> dict[str, tuple[OffState, ...]]:
    """Return the wrong buffers with broadcasting off, and after a buffer got a new tensor, as fields of the fact."""
    import torch

    silent = wrap(ctx, stamped_model(ctx), broadcast=False)
    _stamp(ctx, silent.module)
    _forward(ctx, silent, "broadcasting off")
    model = wrap(ctx, stamped_model(ctx))
    model.module.float_stamp = torch.full_like(model.module.float_stamp, ctx.group_rank + 1.0)
    _forward(ctx, model, "a new tensor as buffer")
    return {
        "kept_off": _stamps_off(ctx, silent.module, _STAMPS, ctx.group_rank),
        "reassigned_off": _stamps_off(ctx, model.module, ("float_stamp",)),
    }


def _stamp(ctx: RankContext, module: Any) -> None:
    for name in _STAMPS:
        getattr(module, name).fill_(ctx.group_rank + 1)


def _forward(ctx: RankContext, model: Any, detail: str) -> None:
    import torch

    given = batch(ctx.group_rank).to(ctx.device, torch.float32)
    with ctx.step("forward", detail):
        model(given).item()


def _norm_off(module: Any, expected: dict[str, Any]) -> tuple[OffState, ...]:
    offs = (_off(f"norm.{name}", getattr(module.norm, name), values, _TOLERANCE) for name, values in expected.items())
    return tuple(off for off in offs if off)


def _normalised_off(module: Any, own: Any, of: Any) -> tuple[OffState, ...]:
    """Return the wrong output of the norm for this rank's batch, if it should normalize with the statistics of ``of``.

    torch's epsilon is 1e-5, and the output values are about 1.
    """
    expected = (own - of.mean(0)) / (of.var(0, unbiased=False) + 1e-5).sqrt()
    off = _off("norm's output", module.normalized, expected, _TOLERANCE, _TOLERANCE)
    return (off,) if off else ()


def _stamps_off(ctx: RankContext, module: Any, names: Sequence[str] = _STAMPS, place: int = 0) -> tuple[OffState, ...]:
    """Compare these tensors with the stamp of the group rank ``place``."""
    import torch

    found = []
    for name in names:
        tensor = getattr(module, name)
        off = _off(name, tensor, torch.full(tensor.shape, place + 1.0, dtype=torch.float64), 0.0)
        if off and off.got is not None and off.got - 1 in range(ctx.world_size):
            off = off.model_copy(update={"from_rank": ctx.ranks[int(off.got) - 1]})
        found += [off] if off else []
    return tuple(found)


def _off(name: str, tensor: Any, expected: Any, relative: float, absolute: float = 0.0) -> OffState | None:
    """Return the worst element beyond the tolerance, or None if all are right."""
    import torch

    values, wanted = tensor.detach().double().cpu().reshape(-1), expected.reshape(-1)
    error = (values - wanted).abs().nan_to_num(nan=torch.inf)
    if bool((error <= relative * wanted.abs() + absolute).all()):
        return None
    worst = int(error.argmax())
    got = float(values[worst]) if bool(values[worst].isfinite()) else None
    return OffState(name=name, expected=float(wanted[worst]), got=got)


def probe(ctx: RankContext) -> Buffers:
    """Wrap stamped models in DDP and compare their state with its closed form."""
    fact = measure(ctx, wrap(ctx, stamped_model(ctx)))
    if ctx.level.includes(Level.STANDARD):
        fact = fact.model_copy(update=measure_options(ctx))
    if not ctx.device.startswith("cuda"):
        reason = "SyncBatchNorm works on accelerators only, and these ranks are on the CPU"
        return fact.model_copy(update={"sync_batch_norm_reason": reason})
    import torch

    kind: Any = torch.nn.SyncBatchNorm  # its methods have no types
    model = wrap(ctx, kind.convert_sync_batchnorm(stamped_model(ctx), ctx.group))
    return fact.model_copy(update=measure_sync_batch_norm(ctx, model))


CHECK = Check(
    id="buffers",
    title="DDP broadcasts parameters and buffers",
    where=Where.RANK,
    probe=probe,
    facts=(Buffers,),
    rules=(buffers_not_from_rank_0, parameters_differ_after_wrapping, batch_norm_wrong),
    min_ranks=2,
)
