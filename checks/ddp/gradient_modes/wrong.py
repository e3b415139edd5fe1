"""DD705-DD710, DD720-DD722: the gradient of a mode is wrong."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.gradient_modes.wording import Off, draft, known_before, off_in, tested_modes
from ddp_doctor.facts.ddp.gradients import GradientModes
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule

#: Modes that differ from an ordinary step in one switch only: if all are wrong, no switch is the cause.
_PLAIN = ("buckets", "bucket-view", "accumulation", "unused", "twice", "static-graph", "checkpoint")


@rule("DD705", "gradient-wrong-in-several-buckets", Severity.ERROR, GradientModes)
def gradient_wrong_in_several_buckets(recording: Recording) -> Iterator[Draft]:
    """Finds: Gradients of a model of mixed sizes, shapes and dtypes in several buckets are not the mean, whatever mode
        DDP is in. Parameters, their bucket and, where it follows, the rank are named.
    Why: Nothing tells: the parameters of one bucket are then trained on other data than the rest.
    Remedy: None of your own code runs in this check: with NCCL, repeat it with NCCL_PROTO=Simple. Otherwise look for
        code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    if known_before(recording, "step"):
        return
    names = _in_common(recording)
    if names:
        off = [gradient for name in names for gradient in off_in(recording, name, wrong=True)]
        yield draft(recording, off, names)


@rule("DD706", "bucket-view-gradient-wrong", Severity.ERROR, GradientModes)
def bucket_view_gradient_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: With ``gradient_as_bucket_view=True`` a gradient is not the mean, though it is without.
    Why: Gradients are then parts of DDP's buckets. Whoever replaces ``.grad`` between the backward and the all-reduce
        holds a copy that is never averaged.
    Remedy: Leave the switch out. Look for hooks and code that assign ``.grad`` in place of writing into it.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from _alone(recording, "bucket-view")


@rule("DD707", "static-graph-gradient-wrong", Severity.ERROR, GradientModes)
def static_graph_gradient_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: With ``static_graph=True``, and a parameter used twice, a gradient is not the mean in the first step
        (which DDP records) or a later one (which it replays).
    Why: The recorded first step decides when each bucket is sent for the rest of the training.
    Remedy: Leave the switch out.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from _alone(recording, "static-graph")


@rule("DD708", "unused-parameter-gradient-wrong", Severity.ERROR, GradientModes)
def unused_parameter_gradient_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: With ``find_unused_parameters=True`` and branches that differ by rank, a gradient is not the sum over the
        ranks that use the parameter divided by the number of all ranks. A parameter that no rank uses must keep no
        gradient.
    Why: A rank that leaves a parameter out counts as a gradient of zero. A mean over its users alone, or a rank that
        keeps its own, trains the branch with another learning rate or apart.
    Remedy: Let every rank use every parameter, multiplied by 0 where it has no meaning.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    yield from _alone(recording, "unused")


@rule("DD709", "accumulated-gradient-wrong", Severity.ERROR, GradientModes)
def accumulated_gradient_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: After several micro-steps inside ``no_sync()`` and one outside, the gradient is not the mean of what all
        of them contributed. The micro-steps enter 1, 2 and 4 times, so that a lost one is named.
    Why: With an off-by-one in accumulation part of each batch is never learnt from, or the ranks drift apart.
    Remedy: None of your own code runs in this check: look for code that replaces ``no_sync`` in torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    if not known_before(recording, "no_sync", "resync"):
        yield from _alone(recording, "accumulation")


@rule("DD710", "gradient-of-twice-used-parameter-wrong", Severity.ERROR, GradientModes)
def gradient_of_twice_used_parameter_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: The gradient of a parameter that the forward uses twice lacks one of its uses, or is not the mean.
    Why: Tied weights (an embedding that is also the output layer) are used twice in every step.
    Remedy: Train with ``static_graph=True`` and look again; look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    yield from _alone(recording, "twice")


@rule("DD720", "checkpointed-gradient-wrong", Severity.ERROR, GradientModes)
def checkpointed_gradient_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: With activation checkpoints, without reentrance or with it under ``static_graph=True``, a gradient is not
        the mean: a segment that is run again counts twice, or a parameter is left out.
    Why: Large models train with checkpoints; a doubled segment has twice the learning rate.
    Remedy: Use ``use_reentrant=False``, and look for code that replaces ``torch.utils.checkpoint``.
    See: https://pytorch.org/docs/stable/checkpoint.html
    """
    yield from _alone(recording, "checkpoint")
    yield from _alone(recording, "checkpoint-static")


@rule("DD721", "compressed-gradient-wrong", Severity.ERROR, GradientModes)
def compressed_gradient_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: With ``fp16_compress_hook`` or ``bf16_compress_hook`` a gradient is off by more than the format's
        rounding: a sum in place of the mean, a bucket that was not reduced, a rank without its share.
    Why: A communication hook takes DDP's own division and reduction over; nobody checks what it returns.
    Remedy: Leave the hook out.
    See: https://pytorch.org/docs/stable/ddp_comm_hooks.html
    """
    yield from _alone(recording, "fp16-compress")
    yield from _alone(recording, "bf16-compress")


@rule("DD722", "powersgd-gradient-wrong", Severity.ERROR, GradientModes)
def powersgd_gradient_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: PowerSGD does not return the mean where it owes it: in the steps before ``start_powerSGD_iter``, for
        vectors, and for matrices whose mean has a rank no higher than ``matrix_approximation_rank``.
    Why: The hook loses what is of higher rank by design, so that no training shows what else it loses.
    Remedy: Leave the hook out.
    See: https://pytorch.org/docs/stable/ddp_comm_hooks.html
    """
    yield from _alone(recording, "powersgd")


def _in_common(recording: Recording) -> list[str]:
    """The modes that are off for one cause: all plain ones, or the one that adds nothing to a step."""
    plain = [name for name in tested_modes(recording) if name in _PLAIN]
    wrong = [name for name in plain if off_in(recording, name, wrong=True)]
    return wrong if "buckets" in wrong or len(wrong) == len(plain) > 1 else []


def _alone(recording: Recording, name: str) -> Iterator[Draft]:
    """The finding of one mode; an ordinary step that is wrong explains it, and so do all modes in common."""
    if known_before(recording, "step") or _in_common(recording):
        return
    off: list[Off] = off_in(recording, name, wrong=True)
    if off:
        yield draft(recording, off)
