"""DD740 - DD742: the ranks' models are not made of the same parameters and buffers in the same order."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.initial_state.wording import model_draft
from ddp_doctor.facts.ddp.model_state import InitialState
from ddp_doctor.knowledge.ddp.manifests import Difference, compare, restored
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.stock_ddp import remedies

_SILENT = ("order", "name")


@rule("DD740", "model-differs-between-ranks", Severity.ERROR, InitialState)
def model_differs_between_ranks(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        A parameter that some ranks lack, or that has another shape, type, device or requires_grad there.
        The ranks compare lists over the control store before the model is wrapped.

    Why it matters
        Wrapping such a model raises on some ranks and hangs or aborts on others, and torch's message counts
        parameters without a name, or blames a connection.

    Remedy
        None of your own code builds this model: compare the versions of torch on these ranks, and look for
        code that replaces parts of it. Of three ranks or more the odd one is named.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp
    """
    yield from _drafts(recording, [one for one in _of(recording, "parameter") if one.kind not in _SILENT])


@rule("DD741", "parameter-order-differs-between-ranks", Severity.ERROR, InitialState)
def parameter_order_differs_between_ranks(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        The ranks have the same parameters in another order, or other names in the same places.

    Why it matters
        DDP pairs parameters by place. If shapes agree nothing is raised: a layer gets the values and the
        gradients of another one, and the ranks train different models.

    Remedy
        None of your own code builds this model: compare the versions of torch on these ranks. In a model
        of your own the cause is a set, an unsorted directory or a layer under ``if rank``.

    References
        https://pytorch.org/docs/stable/notes/ddp.html
    """
    yield from _drafts(recording, [one for one in _of(recording, "parameter") if one.kind in _SILENT])


@rule("DD742", "buffers-differ-between-ranks", Severity.ERROR, InitialState)
def buffers_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        A buffer that some ranks lack, or that has another shape, type, device, order or name there.

    Why it matters
        DDP compares parameters, never buffers. It broadcasts them as one stretch of bytes: a rank aborts, or
        silently gets the values of another buffer.

    Remedy
        None of your own code builds this model: compare the versions of torch on these ranks, and look for
        code that replaces parts of it. Of three ranks or more the odd one is named.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from _drafts(recording, _of(recording, "buffer"))


def _of(recording: Recording, what: str) -> list[Difference]:
    seen = {rank.rank or 0: rank.fact.model for rank in recording.facts(InitialState)}
    return [one for one in compare(restored(seen)) if one.what == what]


def _drafts(recording: Recording, found: list[Difference]) -> Iterator[Draft]:
    backend = recording.world.backend if recording.world else ""
    for one in found:
        mends = remedies(backend, "initial_state")[-1:]  # no bytes have moved yet: NCCL has no part in it
        draft = model_draft(recording, one, "the probe's model", *mends)
        mild = one.kind in ("name", "persistent")
        yield draft.model_copy(update={"severity": Severity.WARNING}) if mild else draft
