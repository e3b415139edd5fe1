"""DD723 - DD727: modes in which DDP raises, hangs, copies or loses the last bits, or that were not tested."""

from collections import defaultdict
from collections.abc import Iterator

from ddp_doctor.checks.ddp.gradient_modes.wording import MODES, modes, off_in, tested_modes, without
from ddp_doctor.facts.ddp.gradients import GradientModes
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import CHANGES_TRAINING, in_code
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import NOBODY, likely, possible
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, cause, rank_culprits, ranks_at


@rule("DD723", "ddp-fails-in-a-mode", Severity.ERROR, GradientModes)
def ddp_fails_in_a_mode(recording: Recording) -> Iterator[Draft]:
    """Finds: DDP raises in a mode that it documents, with a model that it supports.
    Why: A job with this switch ends at its first steps.
    Remedy: Do without the switch; look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for name, words in MODES.items():
        failed = {rank: mode.error for rank, mode in modes(recording, name) if mode.error}
        if not failed:
            continue
        everyone = len(failed) == recording.facts(GradientModes)[0].fact.world_size
        first, who = failed[min(failed)], ranks_at(recording, failed)
        yield likely(
            () if everyone else rank_culprits(recording, GradientModes, sorted(failed)),
            capital(f"with {words.switch} DDP raises an error on {who}: {cause(first).partition('. ')[0]}"),
            Evidence(text=f"rank {min(failed)}: {first}"),
            without(name),
            *remedies(recording, "gradient_modes"),
        )


@rule("DD727", "modes-not-tested", Severity.INFO, GradientModes)
def modes_not_tested(recording: Recording) -> Iterator[Draft]:
    """Finds: Modes of DDP that could not be tested here, and why: a torch without the hook, a backend that does not
        reduce the dtype, no numpy for PowerSGD. What torch refuses to every job on such ranks is not listed, such as
        bf16_compress_hook on CPUs.
    Why: What was not tested is not known to be right.
    Remedy: None, unless a job of yours uses the mode.
    See: https://pytorch.org/docs/stable/ddp_comm_hooks.html
    """
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, words in MODES.items():
        tested = (mode for _, mode in modes(recording, name) if not mode.refused)
        for reason in {mode.not_looked for mode in tested if mode.not_looked}:
            reasons[reason].append(words.switch)
    for reason, switches in reasons.items():
        yield likely(NOBODY, f"Not tested: {', '.join(switches)}", Evidence(text=reason))


_EXPECT = in_code(
    "Pass find_unused_parameters=True to DistributedDataParallel, or let every rank use every parameter",
    cost="One more look at the graph in each step, and one more small all-reduce",
    undo="Leave the argument out again",
    untried=CHANGES_TRAINING,
    references=("https://pytorch.org/docs/stable/notes/ddp.html",),
)


@rule("DD724", "branches-differ-without-find-unused-parameters", Severity.ERROR, GradientModes)
def branches_differ_without_find_unused_parameters(recording: Recording) -> Iterator[Draft]:
    """Finds: Ranks leave out different parameters in one step, and DDP does not look for unused ones: it was not told
        to, or forgot. What each rank uses is compared before the backward, which is then not dared.
    Why: The rank without the gradient never sends the bucket that its peers wait for: they hang until the watchdog ends
        them, and it names the wrong rank.
    Remedy: Pass ``find_unused_parameters=True``, or let every rank use every parameter.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    unused_by_rank = {rank: set(mode.unused) for rank, mode in modes(recording, "unused") if mode.unused is not None}
    if not unused_by_rank:
        return
    everywhere = set.intersection(*unused_by_rank.values())
    left_out = grouped(
        (name, rank) for rank, unused in sorted(unused_by_rank.items()) for name in sorted(unused - everywhere)
    )
    words = [f"{name} is unused on {ranks_at(recording, ranks)}" for name, ranks in sorted(left_out.items())]
    yield likely(
        NOBODY,
        f"DDP does not look for unused parameters, and ranks differ: {', '.join(words)}",
        (
            Evidence(text=f"rank {rank} does not use {name_list(sorted(unused))}")
            for rank, unused in sorted(unused_by_rank.items())
            if unused - everywhere
        ),
        _EXPECT,
        detail="The backward would hang, and was not tried.",
    )


@rule("DD725", "gradients-are-no-views-of-their-bucket", Severity.WARNING, GradientModes)
def gradients_are_no_views_of_their_bucket(recording: Recording) -> Iterator[Draft]:
    """Finds: With ``gradient_as_bucket_view=True`` gradients have memory of their own after the backward.
    Why: The switch is there to save that memory. Something replaces ``.grad``: every step then copies, and whoever does
        so before the all-reduce ends trains on gradients that are not averaged.
    Remedy: Look for hooks and code that assign ``.grad`` (``p.grad = p.grad.clone()``); write into it instead.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    copies = {rank: mode.not_views for rank, mode in modes(recording, "bucket-view") if mode.not_views}
    # A wrong gradient is the greater trouble, and has the same cause.
    if not copies or off_in(recording, "bucket-view", wrong=True):
        return
    names = sorted({name for found in copies.values() for name in found})
    yield likely(
        NOBODY,
        f"With gradient_as_bucket_view=True gradients on {ranks_at(recording, copies)} are copies, not views of"
        " their bucket",
        Evidence(
            text=f"gradients with memory of their own on rank {min(copies)}",
            value=len(copies[min(copies)]),
            expected=0,
            expected_from="what gradient_as_bucket_view=True means",
        ),
        in_code(
            "Look for hooks and code that assign .grad; write into it (copy_, mul_) instead",
            untried="the doctor cannot tell which code assigns it",
        ),
        detail=f"They are those of {name_list(names)} of the doctor's own model; the values are right.",
    )


@rule("DD726", "gradients-of-a-mode-differ-between-ranks", Severity.WARNING, GradientModes)
def gradients_of_a_mode_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """Finds: In a mode, all ranks hold the mean within the rounding of its format, but not the same bits.
    Why: DDP never compares parameters again: the replicas drift apart, with a compressing hook fast.
    Remedy: Leave the mode out.
    See: https://github.com/pytorch/pytorch/issues/109191
    """
    for name in tested_modes(recording):
        differ = off_in(recording, name, wrong=False)
        if differ and not off_in(recording, name, wrong=True):
            names = sorted({found.off.gradient.parameter for found in differ})
            yield possible(
                NOBODY,
                f"With {MODES[name].switch} gradients differ between ranks: the replicas will drift apart",
                Evidence(
                    text="gradients whose bits differ between ranks",
                    value=len(names),
                    expected=0,
                    expected_from="DDP hands one reduced bucket to all ranks",
                ),
                without(name),
                detail=f"They are {name_list(names)} of the doctor's own model; each is right within rounding.",
            )
