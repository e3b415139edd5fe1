"""buffers: does DistributedDataParallel give every rank rank 0's parameters and buffers?

What the probe reads on each rank is the state of a small model that every rank filled with its own stamp
(rank 0 with 1, rank 1 with 2, …)::

                                     before wrapping   after wrapping   stamped anew   after a forward
    weight, rank 1                   2. 2. 2. …        1. 1. 1. …       -              -
    float_stamp, rank 1              2. 2. 2. …        1. 1. 1. …       2. 2. 2. …     1. 1. 1. …
    norm.running_mean, rank 1        0. 0. 0.          0. 0. 0.         -              1. 2. 3.

The batches are known in closed form too: after one forward the running mean of BatchNorm must be half of
the rank's own (momentum 0.5), the next starts from rank 0's, and SyncBatchNorm's is that of all ranks.

Why it matters: ranks that start from other weights train other models; running statistics that drift
apart make the saved model, rank 0's, worse in evaluation than the losses of the training promised.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Level, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.ddp import remedies
from ddp_doctor.phrases.ranks import rank_culprits, ranks_at

CHANNELS = 3
#: Deviations of a batch from its mean: sum 0, sum of squares 10, so variance 2 (biased) or 2.5.
_DEVIATIONS = (-2, -1, 0, 1, 2)
#: Relative error allowed in statistics. float32 rounds by 6e-8 an operation, and SyncBatchNorm's kernels
#: carry the variance as 1/sqrt; a rank's share in the statistics of n ranks is about 1/n.
_TOLERANCE = 1e-4
_MOMENTUM = 0.5  # exact in binary, unlike torch's default of 0.1
_BROADCAST = ("parameters_off", "buffers_off")  # what comes from rank 0


class OffState(Frozen):
    """The worst element of a parameter or buffer that is not what it must be.

    ``from_rank`` is the original rank whose value it holds, None where it is nobody's; ``got`` is None
    where it is not a finite number.
    """

    name: str
    expected: float
    got: float | None
    from_rank: int | None = None


class Buffers(Fact):
    """What of one rank's model state is off. ``source_rank`` is the rank that DDP broadcasts from.

    ``parameters_off`` after wrapping, ``buffers_off`` after two forwards, ``batch_norm_off`` after the first;
    ``sync_batch_norm_off`` is None where it could not be tested, for ``sync_batch_norm_reason``.
    """

    KIND: ClassVar[str] = "buffers/1"

    world_size: int
    source_rank: int
    parameters_off: tuple[OffState, ...] = ()
    buffers_off: tuple[OffState, ...] = ()
    batch_norm_off: tuple[OffState, ...] = ()
    sync_batch_norm_off: tuple[OffState, ...] | None = None
    sync_batch_norm_reason: str | None = None


def probe(ctx: RankContext) -> Buffers:
    """Wrap stamped models in DDP and compare their state with its closed form."""
    fact = measure(ctx, wrap(ctx, stamped_model(ctx)))
    if not ctx.device.startswith("cuda"):
        reason = "SyncBatchNorm works on accelerators only, and these ranks are on the CPU"
        return fact.model_copy(update={"sync_batch_norm_reason": reason})
    import torch

    kind: Any = torch.nn.SyncBatchNorm  # its methods have no types
    model = wrap(ctx, kind.convert_sync_batchnorm(stamped_model(ctx), ctx.group))
    off = measure_sync_batch_norm(ctx, model)
    return fact.model_copy(update={"sync_batch_norm_off": off})


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
    model.norm = torch.nn.BatchNorm1d(CHANNELS, momentum=_MOMENTUM)
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
    own = _updated(_START, _own(place))
    batch_norm_off = _norm_off(norm, own)
    _forward(ctx, model, "second")
    stamps_off = [_stamp_off(ctx, name, getattr(module, name)) for name in ("float_stamp", "int_stamp")]
    mixed = _updated(_updated(_START, _own(0)), _own(place))
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
    off = _norm_off(model.module.norm, _updated(_START, overall(ctx.world_size)))
    own = not _norm_off(model.module.norm, _updated(_START, _own(ctx.group_rank)))
    return tuple(one.model_copy(update={"from_rank": ctx.rank if own else None}) for one in off)


def _forward(ctx: RankContext, model: Any, detail: str) -> None:
    given = batch(ctx.group_rank, ctx.device)
    with ctx.step("forward", detail):
        model(given).item()


def batch(place: int, device: str) -> Any:
    """The batch of one group rank, shape (5, CHANNELS): mean (rank+1)(channel+1), variance 2(rank+1)²."""
    import torch

    rows = [[channel + 1 + deviation for channel in range(CHANNELS)] for deviation in _DEVIATIONS]
    return (place + 1) * torch.tensor(rows, dtype=torch.float32, device=device)


#: Mean and unbiased variance of each channel.
Statistics = tuple[list[float], list[float]]
_START: Statistics = ([0.0] * CHANNELS, [1.0] * CHANNELS)  # of a new BatchNorm


def _own(place: int) -> Statistics:
    means = [float((place + 1) * (channel + 1)) for channel in range(CHANNELS)]
    return means, [2.5 * (place + 1) ** 2] * CHANNELS


def overall(ranks: int) -> Statistics:
    """Mean and unbiased variance over the batches of all ranks."""
    elements = ranks * len(_DEVIATIONS)
    square = sum((place + 1) ** 2 for place in range(ranks)) / ranks
    means = [(channel + 1) * (ranks + 1) / 2 for channel in range(CHANNELS)]
    biased = [square * (2 + (channel + 1) ** 2) - means[channel] ** 2 for channel in range(CHANNELS)]
    return means, [variance * elements / (elements - 1) for variance in biased]


def _updated(running: Statistics, seen: Statistics) -> Statistics:
    """Running statistics after one more batch."""
    means, variances = (
        [(1 - _MOMENTUM) * old + _MOMENTUM * new for old, new in zip(olds, news, strict=True)]
        for olds, news in zip(running, seen, strict=True)
    )
    return means, variances


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


Seen = tuple[int, Buffers, tuple[OffState, ...]]  # rank, its fact, what is off there


def _drafts(recording: Recording, field: str, what: str, wanted: str) -> Iterator[Draft]:
    """One draft for each way in which the state in ``field`` is off: own, another rank's, nobody's."""
    facts = [(seen.rank or 0, seen.fact) for seen in recording.facts(Buffers)]
    seen = [(rank, fact, getattr(fact, field) or ()) for rank, fact in facts]
    wrong = [one for one in seen if one[2]]
    groups: dict[str, list[Seen]] = {}
    for one in wrong:
        groups.setdefault(_holds(one), []).append(one)
    for holds, group in groups.items():
        blamed = [rank for rank, _, _ in group] if _some_right(wrong, field in _BROADCAST) else []
        yield _draft(recording, group, f"{what} on {{ranks}}: {holds}", blamed, wanted)


def _holds(seen: Seen) -> str:
    rank, _, off = seen
    origins = {one.from_rank for one in off if one.from_rank is not None}
    if origins == {rank}:
        return "they are the rank's own"
    if len(origins) == 1:
        return f"they are rank {origins.pop()}'s"
    return "no rank's explain them" if not origins else "they come from several ranks"


def _some_right(wrong: Sequence[Seen], broadcast: bool) -> bool:
    """Whether some rank got it right: only then is an off rank to blame, else all are victims.

    Of a broadcast the source has nothing to receive, so its being right says nothing.
    """
    _, fact, _ = wrong[0]
    silent = {fact.source_rank} if broadcast else set()
    return len({rank for rank, _, _ in wrong} - silent) < fact.world_size - len(silent)


def _draft(
    recording: Recording, group: Sequence[Seen], title: str, blamed: Sequence[int], wanted: str
) -> Draft:
    rank, fact, off = group[0]
    ranks = ranks_at(recording, [rank for rank, _, _ in group])
    names = sorted({one.name for _, _, offs in group for one in offs})
    return Draft(
        title=title.format(ranks=ranks, source=fact.source_rank),
        detail=f"Off are {', '.join(names)} of the probe's model, on {ranks}; none of your code took part.",
        confidence=Confidence.LIKELY,
        culprits=rank_culprits(recording, Buffers, blamed),
        evidence=(
            Evidence(
                check="buffers",
                text=f"worst element of {off[0].name} on rank {rank}",
                value=off[0].got,
                expected=off[0].expected,
                expected_from=wanted.format(source=fact.source_rank),
            ),
        ),
        remedies=remedies(recording.world.backend if recording.world else "", "buffers"),
    )


@rule("DD711", "buffers-not-from-rank-0", Severity.ERROR, Buffers)
def buffers_not_from_rank_0(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        Before a forward DDP broadcasts rank 0's buffers; after it a rank still holds others.

    Why it matters
        BatchNorm's running statistics and every other buffer drift apart between the ranks. The saved
        model is rank 0's, and evaluates differently from what the others trained with.

    Remedy
        None of your own code runs in this check, and it leaves broadcasting on, as DDP's default is: look
        for code that replaces parts of torch. With NCCL, repeat it with NCCL_PROTO=Simple.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    what = "After a forward, buffers are not rank {source}'s"
    yield from _drafts(recording, "buffers_off", what, "rank {source}'s, broadcast by DDP")


@rule("DD712", "parameters-differ-after-wrapping", Severity.ERROR, Buffers)
def parameters_differ_after_wrapping(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        Wrapping a model in DDP broadcasts rank 0's parameters; afterwards a rank still holds others.

    Why it matters
        Equal gradients keep replicas equal only if they start equal. Otherwise each rank trains another
        model, and gradients are averaged that belong to different weights.

    Remedy
        None of your own code runs in this check: look for code that replaces parts of torch. With NCCL,
        repeat it with NCCL_PROTO=Simple.

    References
        https://pytorch.org/docs/stable/notes/ddp.html
    """
    what = "After wrapping, parameters are not rank {source}'s"
    yield from _drafts(recording, "parameters_off", what, "rank {source}'s, broadcast by DDP")


@rule("DD713", "batch-norm-statistics-wrong", Severity.ERROR, Buffers)
def batch_norm_statistics_wrong(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        After the first forward, BatchNorm's running mean or variance on a rank is not that of its batch.

    Why it matters
        Without SyncBatchNorm each rank normalises with its own batch. No network is involved in that: the
        rank's GPU or its torch computes wrongly, and so will every layer of the model.

    Remedy
        Repeat without this rank's GPU; look for code that replaces parts of torch.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.BatchNorm1d.html
    """
    what, wanted = "BatchNorm's statistics are wrong", "closed form of the rank's own batch"
    yield from _drafts(recording, "batch_norm_off", what, wanted)


@rule("DD714", "sync-batch-norm-not-synchronised", Severity.ERROR, Buffers)
def sync_batch_norm_not_synchronised(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        With SyncBatchNorm the running statistics on a rank are not those of all ranks' batches together.

    Why it matters
        SyncBatchNorm is used where a rank's batch is too small to normalise with. Without its exchange the
        model trains on noise, and the replicas drift apart.

    Remedy
        None of your own code runs in this check: look for code that replaces parts of torch. With NCCL,
        repeat it with NCCL_PROTO=Simple.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """
    what, wanted = "SyncBatchNorm does not synchronise", "closed form over the batches of all ranks"
    yield from _drafts(recording, "sync_batch_norm_off", what, wanted)


CHECK = Check(
    id="buffers",
    title="DDP broadcasts parameters and buffers",
    where=Where.RANK,
    probe=probe,
    facts=(Buffers,),
    rules=(
        buffers_not_from_rank_0,
        parameters_differ_after_wrapping,
        batch_norm_statistics_wrong,
        sync_batch_norm_not_synchronised,
    ),
    level=Level.QUICK,
    min_ranks=2,
)
