"""DD711, DD712, DD715, DD716: buffers or parameters that are not rank 0's, or are and ought not to be."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.buffers.blame import drafts
from ddp_doctor.facts.ddp.model_state import Buffers
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule


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
    yield from drafts(recording, "buffers_off", what, "rank {source}'s, broadcast by DDP")


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
    yield from drafts(recording, "parameters_off", what, "rank {source}'s, broadcast by DDP")


@rule("DD715", "buffers-broadcast-though-off", Severity.ERROR, Buffers)
def buffers_broadcast_though_off(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        A model is wrapped with the broadcast of buffers off, and a forward overwrites a rank's buffers
        all the same.

    Why it matters
        The option is switched off where buffers belong to the rank: its share of a table, its position in
        a stream, its own statistics. They are lost in silence, and each step pays for the broadcast.

    Remedy
        None of your own code runs in this check: look for code that replaces parts of torch.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    what = "With the broadcast of buffers off, buffers are overwritten"
    yield from drafts(recording, "kept_off", what, "the rank's own")


@rule("DD716", "reassigned-buffer-not-broadcast", Severity.ERROR, Buffers)
def reassigned_buffer_not_broadcast(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        After wrapping, a buffer gets a new tensor (``self.running = new``). The next forward does not
        broadcast it: DDP still holds the old one.

    Why it matters
        Many modules write their buffers so. The ranks' copies drift apart, and the saved model is rank 0's.

    Remedy
        None of your own code runs in this check, and torch 2.4 and later follow such buffers: look for code
        that replaces parts of it. Until then write into the old tensor: ``self.running.copy_(new)``.

    References
        https://github.com/pytorch/pytorch/issues/63916
    """
    # Without any broadcast this one is missing too: DD711's finding.
    if any(seen.fact.buffers_off for seen in recording.facts(Buffers)):
        return
    what = "A buffer that got a new tensor after wrapping is not rank {source}'s"
    yield from drafts(recording, "reassigned_off", what, "rank {source}'s, broadcast by DDP")
