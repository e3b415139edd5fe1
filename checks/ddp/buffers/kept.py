"""DD715, DD716: DDP broadcasts buffers that it was told to leave alone, or loses sight of one."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.buffers.blame import drafts
from ddp_doctor.facts.buffers import Buffers
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule


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


RULES = (buffers_broadcast_though_off, reassigned_buffer_not_broadcast)
