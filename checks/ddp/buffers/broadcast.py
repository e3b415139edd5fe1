"""DD711, DD712: a rank does not hold the buffers or parameters of rank 0."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.buffers.blame import drafts
from ddp_doctor.facts.buffers import Buffers
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


RULES = (buffers_not_from_rank_0, parameters_differ_after_wrapping)
