"""DD730-DD733, DD737: ranks that skip, scale or step apart under autocast with a GradScaler."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.mixed_precision.apart import apart, few, known_before, odd, off, scaled, software
from ddp_doctor.facts.ddp.gradients import MixedPrecision
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import CHANGES_TRAINING, in_code
from ddp_doctor.wording.findings import NOBODY, likely
from ddp_doctor.wording.ranks import rank_culprits, ranks_at

_BACKOFF = 0.5  # torch.amp.GradScaler's default
_AGREE = in_code(
    "Let the ranks agree: all-reduce (MAX) the scaler's found_inf before scaler.step(), as FSDP's"
    " ShardedGradScaler does",
    cost="One all-reduce of a number in each step",
    undo="Leave it out again",
    untried=CHANGES_TRAINING,
    references=("https://pytorch.org/docs/stable/amp.html",),
)
_WITHOUT_SCALER = in_code(
    "Autocast to bfloat16 without a GradScaler",
    cost="Three bits less of each number; needs a GPU that computes in bfloat16 (Ampere or newer)",
    untried=CHANGES_TRAINING,
)


@rule("DD730", "ranks-skip-scaled-steps-apart", Severity.ERROR, MixedPrecision)
def ranks_skip_scaled_steps_apart(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        One rank's gradient is infinite, and some ranks skip the step while others take it.

    Why it matters
        The ranks' weights and scales differ from then on, and DDP never compares them again.

    Remedy
        Look for a communication hook or code that keeps infinities from the other ranks; let the ranks
        agree on found_inf before they step.

    References
        https://pytorch.org/docs/stable/amp.html
        https://pytorch.org/docs/stable/notes/amp_examples.html
    """
    steps = apart(recording, lambda step: step.stepped)
    if not steps or off(recording):
        return
    stepped = [rank for rank, step in steps if step.stepped]
    skipped = [rank for rank, step in steps if not step.stepped]
    infinite, source = steps[0][1].infinite, scaled(recording)[0][0][1].infinite_rank
    wrong = stepped if infinite else skipped
    why = f"rank {source}'s gradient is infinite" if infinite else "all gradients are finite"
    yield likely(
        rank_culprits(recording, MixedPrecision, few(wrong, steps)),
        f"Where {why}, {ranks_at(recording, skipped)} skipped the step and"
        f" {ranks_at(recording, stepped)} took it",
        Evidence(
            text="ranks that took the step",
            value=len(stepped),
            expected=0 if infinite else len(steps),
            expected_from="DDP's all-reduce hands an infinity to all ranks",
        ),
        _AGREE,
        *software(recording),
        detail="The model is the probe's: none of your code took part.",
    )


@rule("DD731", "scales-differ-between-ranks", Severity.ERROR, MixedPrecision)
def scales_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        All ranks took and skipped the same steps, and their GradScalers hold different scales.

    Why it matters
        Each rank scales its loss by another factor; DDP averages the scaled gradients, so that a rank with
        twice the scale counts twice.

    Remedy
        Give all ranks one GradScaler configuration, and load its state from one checkpoint.

    References
        https://pytorch.org/docs/stable/amp.html
    """
    steps = apart(recording, lambda step: step.scale)
    if not steps or off(recording) or apart(recording, lambda step: step.stepped):
        return
    ranks, usual = odd(steps, lambda step: step.scale)
    yield likely(
        rank_culprits(recording, MixedPrecision, few(ranks, steps)),
        f"The GradScaler on {ranks_at(recording, ranks)} holds another scale than on the other ranks",
        (
            Evidence(text=f"scale on rank {rank}; most ranks: {usual}", value=step.scale)
            for rank, step in steps
            if rank in ranks
        ),
        *software(recording),
    )


@rule("DD732", "infinite-gradient-does-not-skip-the-step", Severity.ERROR, MixedPrecision)
def infinite_gradient_does_not_skip_the_step(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        One rank's gradient is infinite, and no rank skips the step; or all skip it and the scale stays.

    Why it matters
        Either the weights are infinite from then on, or something removes infinities before the scaler
        sees them, and a wrong gradient is learnt from. A scale that stays overflows for ever.

    Remedy
        Look for a communication hook or code that replaces infinities (nan_to_num, clamp).

    References
        https://pytorch.org/docs/stable/amp.html
    """
    differ = apart(recording, lambda step: (step.stepped, step.scale))
    for seen in () if differ or off(recording) else scaled(recording):
        (_, one), *_ = seen
        before = one.scale
        for step in one.steps:
            due, before = before * (_BACKOFF if step.infinite else 1.0), step.scale
            if not step.infinite or (not step.stepped and step.scale == due):
                continue
            what = "no rank skips the step" if step.stepped else "the scale is not halved"
            yield likely(
                NOBODY,
                f"Rank {one.infinite_rank}'s gradient is infinite, and {what}",
                Evidence(
                    text="scale after the step with an infinite gradient",
                    value=step.scale,
                    expected=due,
                    expected_from="GradScaler's backoff_factor of 0.5",
                ),
                *software(recording),
                detail=f"Under autocast to {one.dtype}, with a model of the probe's.",
            )
            return


@rule("DD733", "autocast-gradient-wrong", Severity.ERROR, MixedPrecision)
def autocast_gradient_wrong(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        Under autocast with a GradScaler the unscaled gradient is not the mean, to the rounding of the
        format, though an ordinary step's is.

    Why it matters
        Nothing tells: the loss still falls.

    Remedy
        None of your own code runs in this check: look for code that replaces parts of torch.

    References
        https://pytorch.org/docs/stable/amp.html
    """
    wrong = off(recording)
    if not wrong or known_before(recording):
        return
    rank, worst = max(wrong, key=lambda one: one[1].max_abs_error or 0.0)
    ranks, number = sorted({one for one, _ in wrong}), len(recording.facts(MixedPrecision))
    yield likely(
        rank_culprits(recording, MixedPrecision, ranks if len(ranks) < number else ()),
        f"Under autocast the gradient on {ranks_at(recording, ranks)} is not the mean that DDP owes:"
        f" {gradient_code.words(worst.held, number)}",
        Evidence(
            text=f"worst element of the unscaled gradient of {worst.parameter} on rank {rank}",
            value=worst.got,
            expected=worst.expected,
            expected_from="closed form of the ranks' known gradients, in float64",
        ),
        _WITHOUT_SCALER,
        *software(recording),
    )


@rule("DD737", "weights-differ-after-scaled-steps", Severity.WARNING, MixedPrecision)
def weights_differ_after_scaled_steps(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        All ranks took the same steps with the same scale, and hold different weights afterwards.

    Why it matters
        DDP never compares parameters again: the replicas drift apart.

    Remedy
        Look for code that replaces parts of torch.

    References
        https://github.com/pytorch/pytorch/issues/109191
    """
    steps = apart(recording, lambda step: step.bits)
    if not steps or off(recording) or apart(recording, lambda step: (step.stepped, step.scale)):
        return
    ranks, _ = odd(steps, lambda step: step.bits)
    yield likely(
        NOBODY,
        f"After scaled steps the weights on {ranks_at(recording, ranks)} are not those of the others",
        Evidence(
            text="ranks whose weights differ in some bit",
            value=len(ranks),
            expected=0,
            expected_from="equal weights, gradients and scales",
        ),
        *software(recording),
    )
