"""DD711 - DD717: buffers, parameters or BatchNorm's statistics that are not what DDP promises."""

from collections.abc import Iterator, Sequence

from ddp_doctor.facts.ddp.model_state import Buffers, OffState
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.ranks import rank_culprits, ranks_at

#: State that comes from rank 0 or, with broadcasting off, could only come from rank 0.
_BROADCAST = ("parameters_off", "buffers_off", "reassigned_off", "kept_off")
_RankState = tuple[int, Buffers, tuple[OffState, ...]]  # rank, its fact, what is off there


def drafts(recording: Recording, field: str, what: str, wanted: str) -> Iterator[Draft]:
    """One draft for each way in which the state in ``field`` is off: own, another rank's, nobody's."""
    facts = [(rank.rank or 0, rank.fact) for rank in recording.facts(Buffers)]
    states = [(rank, fact, getattr(fact, field) or ()) for rank, fact in facts]
    wrong = [state for state in states if state[2]]
    for holds, group in grouped((_holds(state), state) for state in wrong).items():
        blamed = [rank for rank, _, _ in group] if _some_right(wrong, field in _BROADCAST) else []
        yield _draft(recording, group, f"{what}: {holds}", blamed, wanted)


def _holds(state: _RankState) -> str:
    rank, _, off = state
    origins = {tensor.from_rank for tensor in off if tensor.from_rank is not None}
    if origins == {rank}:
        return "they are the rank's own"
    if len(origins) == 1:
        return f"they are rank {origins.pop()}'s"
    return "they match those of no rank" if not origins else "they come from several ranks"


def _some_right(wrong: Sequence[_RankState], broadcast: bool) -> bool:
    """Whether some rank got it right: only then is an off rank to blame.

    The source of a broadcast receives nothing, so its own state is no evidence.
    """
    _, fact, _ = wrong[0]
    silent = {fact.source_rank} if broadcast else set()
    return len({rank for rank, _, _ in wrong} - silent) < fact.world_size - len(silent)


def _draft(recording: Recording, group: Sequence[_RankState], title: str, blamed: Sequence[int], wanted: str) -> Draft:
    rank, fact, off = group[0]
    ranks = ranks_at(recording, [rank for rank, _, _ in group])
    names = sorted({tensor.name for _, _, offs in group for tensor in offs})
    return likely(
        rank_culprits(recording, Buffers, blamed),
        title.format(ranks=ranks, source=fact.source_rank),
        Evidence(
            text=f"worst element of {off[0].name} on rank {rank}",
            value=off[0].got,
            expected=off[0].expected,
            expected_from=wanted.format(source=fact.source_rank),
        ),
        *remedies(recording, "buffers"),
        detail=f"Wrong: {', '.join(names)} of the doctor's own model, on {ranks}; none of your code took part.",
    )


@rule("DD711", "buffers-not-from-rank-0", Severity.ERROR, Buffers)
def buffers_not_from_rank_0(recording: Recording) -> Iterator[Draft]:
    """Finds: Before a forward DDP broadcasts rank 0's buffers; after it a rank still holds others.
    Why: BatchNorm's running statistics and every other buffer drift apart between the ranks. The saved model is rank
        0's, and evaluates differently from what the others trained with.
    Remedy: None of your own code runs in this check, and it leaves broadcasting on, as DDP's default is: look for code
        that replaces parts of torch. With NCCL, repeat it with NCCL_PROTO=Simple.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    what = "After a forward, buffers on {ranks} are not rank {source}'s"
    yield from drafts(recording, "buffers_off", what, "rank {source}'s, broadcast by DDP")


@rule("DD712", "parameters-differ-after-wrapping", Severity.ERROR, Buffers)
def parameters_differ_after_wrapping(recording: Recording) -> Iterator[Draft]:
    """Finds: Wrapping a model in DDP broadcasts rank 0's parameters; afterwards a rank still holds others.
    Why: Equal gradients keep replicas equal only if they start equal. Otherwise each rank trains another model, and
        gradients are averaged that belong to different weights.
    Remedy: None of your own code runs in this check: look for code that replaces parts of torch. With NCCL, repeat it
        with NCCL_PROTO=Simple.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    what = "After wrapping, parameters on {ranks} are not rank {source}'s"
    yield from drafts(recording, "parameters_off", what, "rank {source}'s, broadcast by DDP")


@rule("DD715", "buffers-broadcast-though-off", Severity.ERROR, Buffers)
def buffers_broadcast_though_off(recording: Recording) -> Iterator[Draft]:
    """Finds: A model is wrapped with the broadcast of buffers off, and a forward overwrites a rank's buffers all the
        same.
    Why: The option is switched off where buffers belong to the rank: its share of a table, its position in a stream,
        its own statistics. They are lost in silence, and each step pays for the broadcast.
    Remedy: None of your own code runs in this check: look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    what = "With the broadcast of buffers off, buffers on {ranks} are overwritten"
    yield from drafts(recording, "kept_off", what, "the rank's own")


@rule("DD716", "reassigned-buffer-not-broadcast", Severity.ERROR, Buffers)
def reassigned_buffer_not_broadcast(recording: Recording) -> Iterator[Draft]:
    """Finds: After wrapping, a buffer gets a new tensor (``self.running = new``). The next forward does not broadcast
        it: DDP still holds the old one.
    Why: Many modules write their buffers so. The ranks' copies drift apart, and the saved model is rank 0's.
    Remedy: None of your own code runs in this check, and torch 2.4 and later follow such buffers: look for code that
        replaces parts of it. Until then write into the old tensor: ``self.running.copy_(new)``.
    See: https://github.com/pytorch/pytorch/issues/63916
    """
    # Without any broadcast this one is missing too: DD711 reports it.
    if any(rank.fact.buffers_off for rank in recording.facts(Buffers)):
        return
    what = "After a buffer got a new tensor, its values on {ranks} are not rank {source}'s"
    yield from drafts(recording, "reassigned_off", what, "rank {source}'s, broadcast by DDP")


@rule("DD713", "batch-norm-statistics-wrong", Severity.ERROR, Buffers)
def batch_norm_statistics_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: After the first forward, BatchNorm's running mean or variance on a rank is not that of its batch.
    Why: Without SyncBatchNorm each rank normalises with its own batch. No network is involved in that: the rank's GPU
        or its torch computes wrongly, and so will every layer of the model.
    Remedy: Repeat without this rank's GPU; look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.BatchNorm1d.html
    """
    what, wanted = "BatchNorm's statistics on {ranks} are wrong", "closed form of the rank's own batch"
    yield from drafts(recording, "batch_norm_off", what, wanted)


@rule("DD714", "sync-batch-norm-not-synchronised", Severity.ERROR, Buffers)
def sync_batch_norm_not_synchronised(recording: Recording) -> Iterator[Draft]:
    """Finds: With SyncBatchNorm the running statistics on a rank are not those of all ranks' batches together.
    Why: SyncBatchNorm is used where a rank's batch is too small to normalise with. Without its exchange the model
        trains on noise, and the replicas drift apart.
    Remedy: None of your own code runs in this check: look for code that replaces parts of torch. With NCCL, repeat it
        with NCCL_PROTO=Simple.
    See: https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """
    what, wanted = ("SyncBatchNorm's statistics on {ranks} are wrong", "closed form over the batches of all ranks")
    yield from drafts(recording, "sync_batch_norm_off", what, wanted)


@rule("DD717", "batch-normalised-with-other-statistics", Severity.ERROR, Buffers)
def batch_normalised_with_other_statistics(recording: Recording) -> Iterator[Draft]:
    """Finds: BatchNorm's running statistics are right, and what it gives for a batch is not: the batch is not
        normalised with its own mean and variance or, under SyncBatchNorm, with those of all ranks' batches.
    Why: The running statistics are used in evaluation alone. Training sees the output: with SyncBatchNorm that
        normalises each rank's batch by itself, small batches train as badly as without it.
    Remedy: None of your own code runs in this check: look for code that replaces parts of torch. With NCCL, repeat it
        with NCCL_PROTO=Simple.
    See: https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
        https://arxiv.org/abs/1502.03167
    """
    # Wrong statistics explain wrong outputs, and other rules report them.
    facts = [rank.fact for rank in recording.facts(Buffers)]
    if not any(fact.batch_norm_off for fact in facts):
        what, wanted = "BatchNorm's outputs on {ranks} are wrong", "closed form with the rank's own batch"
        yield from drafts(recording, "normalised_off", what, wanted)
    if not any(fact.sync_batch_norm_off for fact in facts):
        what, wanted = ("SyncBatchNorm's outputs on {ranks} are wrong", "closed form with the batches of all ranks")
        yield from drafts(recording, "sync_normalised_off", what, wanted)
