"""DD713, DD714, DD717: BatchNorm's statistics or outputs are wrong, or not those of all ranks."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.buffers.blame import drafts
from ddp_doctor.facts.ddp.model_state import Buffers
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule


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
    yield from drafts(recording, "batch_norm_off", what, wanted)


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
    yield from drafts(recording, "sync_batch_norm_off", what, wanted)


@rule("DD717", "batch-normalised-with-other-statistics", Severity.ERROR, Buffers)
def batch_normalised_with_other_statistics(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        BatchNorm's running statistics are right, and what it gives for a batch is not: the batch is not
        normalised with its own mean and variance or, under SyncBatchNorm, with those of all ranks' batches.

    Why it matters
        The running statistics are used in evaluation alone. Training sees the output: with SyncBatchNorm
        that normalises each rank's batch by itself, small batches train as badly as without it.

    Remedy
        None of your own code runs in this check: look for code that replaces parts of torch. With NCCL,
        repeat it with NCCL_PROTO=Simple.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
        https://arxiv.org/abs/1502.03167
    """
    # Wrong statistics explain wrong outputs, and are the finding then.
    seen = [rank.fact for rank in recording.facts(Buffers)]
    if not any(fact.batch_norm_off for fact in seen):
        what, wanted = "BatchNorm gives wrong outputs", "closed form with the rank's own batch"
        yield from drafts(recording, "normalised_off", what, wanted)
    if not any(fact.sync_batch_norm_off for fact in seen):
        what, wanted = "SyncBatchNorm gives wrong outputs", "closed form with the batches of all ranks"
        yield from drafts(recording, "sync_normalised_off", what, wanted)
