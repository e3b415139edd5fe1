"""DD730-DD733, DD737: ranks that skip, scale or step apart under autocast with a GradScaler."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

from ddp_doctor.facts.ddp.gradients import GradientSync, MixedPrecision, Scaled, ScaledStep
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import CHANGES_TRAINING, in_code
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import NOBODY, likely
from ddp_doctor.wording.ranks import capital, rank_culprits, ranks_at

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
    """Finds: One rank's gradient is infinite, and some ranks skip the step while others take it.
    Why: The ranks' weights and scales differ from then on, and DDP never compares them again.
    Remedy: Look for a communication hook or code that keeps infinities from the other ranks; let the ranks agree on
        found_inf before they step.
    See: https://pytorch.org/docs/stable/amp.html
        https://pytorch.org/docs/stable/notes/amp_examples.html
    """
    steps = first_difference(recording, lambda step: step.stepped)
    if not steps or off_gradients(recording):
        return
    stepped = [rank for rank, step in steps if step.stepped]
    skipped = [rank for rank, step in steps if not step.stepped]
    infinite, source = steps[0][1].infinite, scaled_by_format(recording)[0][0][1].infinite_rank
    wrong = stepped if infinite else skipped
    why = f"rank {source}'s gradient is infinite" if infinite else "all gradients are finite"
    yield likely(
        rank_culprits(recording, MixedPrecision, minority(wrong, steps)),
        f"{capital(why)}: {ranks_at(recording, skipped)} skipped the step, {ranks_at(recording, stepped)} took it",
        Evidence(
            text="ranks that took the step",
            value=len(stepped),
            expected=0 if infinite else len(steps),
            expected_from="DDP's all-reduce hands an infinity to all ranks",
        ),
        _AGREE,
        *remedies(recording, "mixed_precision"),
        detail="The model is the doctor's own: none of your code took part.",
    )


@rule("DD731", "scales-differ-between-ranks", Severity.ERROR, MixedPrecision)
def scales_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """Finds: All ranks took and skipped the same steps, and their GradScalers hold different scales.
    Why: Each rank scales its loss by another factor; DDP averages the scaled gradients, so that a rank with twice the
        scale counts twice.
    Remedy: Give all ranks one GradScaler configuration, and load its state from one checkpoint.
    See: https://pytorch.org/docs/stable/amp.html
    """
    steps = first_difference(recording, lambda step: step.scale)
    if not steps or off_gradients(recording) or first_difference(recording, lambda step: step.stepped):
        return
    ranks, usual = odd_ranks(steps, lambda step: step.scale)
    yield likely(
        rank_culprits(recording, MixedPrecision, minority(ranks, steps)),
        f"The GradScaler on {ranks_at(recording, ranks)} holds another scale than on the other ranks",
        (
            Evidence(text=f"scale on rank {rank}; most ranks: {usual}", value=step.scale)
            for rank, step in steps
            if rank in ranks
        ),
        *remedies(recording, "mixed_precision"),
    )


@rule("DD732", "infinite-gradient-does-not-skip-the-step", Severity.ERROR, MixedPrecision)
def infinite_gradient_does_not_skip_the_step(recording: Recording) -> Iterator[Draft]:
    """Finds: One rank's gradient is infinite, and no rank skips the step; or all skip it and the scale stays.
    Why: Either the weights are infinite from then on, or something removes infinities before the scaler sees them, and
        a wrong gradient is learnt from. A scale that stays overflows for ever.
    Remedy: Look for a communication hook or code that replaces infinities (nan_to_num, clamp).
    See: https://pytorch.org/docs/stable/amp.html
    """
    differ = first_difference(recording, lambda step: (step.stepped, step.scale))
    for ranks in () if differ or off_gradients(recording) else scaled_by_format(recording):
        (_, scaled), *_ = ranks
        before = scaled.scale
        for step in scaled.steps:
            due, before = before * (_BACKOFF if step.infinite else 1.0), step.scale
            if not step.infinite or (not step.stepped and step.scale == due):
                continue
            what = "no rank skips the step" if step.stepped else "the scale is not halved"
            yield likely(
                NOBODY,
                f"Rank {scaled.infinite_rank}'s gradient is infinite, and {what}",
                Evidence(
                    text="scale after the step with an infinite gradient",
                    value=step.scale,
                    expected=due,
                    expected_from="GradScaler's backoff_factor of 0.5",
                ),
                *remedies(recording, "mixed_precision"),
                detail=f"Under autocast to {scaled.dtype}, with a model of the doctor's own.",
            )
            return


@rule("DD733", "autocast-gradient-wrong", Severity.ERROR, MixedPrecision)
def autocast_gradient_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: Under autocast with a GradScaler the unscaled gradient is not the mean, to the rounding of the format,
        though an ordinary step's is.
    Why: Nothing tells: the loss still falls.
    Remedy: None of your own code runs in this check: look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/amp.html
    """
    wrong = off_gradients(recording)
    if not wrong or known_before(recording):
        return
    rank, worst = max(wrong, key=lambda entry: entry[1].max_abs_error or 0.0)
    ranks, number = sorted({rank for rank, _ in wrong}), len(recording.facts(MixedPrecision))
    yield likely(
        rank_culprits(recording, MixedPrecision, ranks if len(ranks) < number else ()),
        f"Under autocast the gradient on {ranks_at(recording, ranks)} is wrong:"
        f" {gradient_code.words(worst.held, number)}",
        worst.evidence(f"unscaled gradient of {worst.parameter} on rank {rank}"),
        _WITHOUT_SCALER,
        *remedies(recording, "mixed_precision"),
    )


@rule("DD737", "weights-differ-after-scaled-steps", Severity.WARNING, MixedPrecision)
def weights_differ_after_scaled_steps(recording: Recording) -> Iterator[Draft]:
    """Finds: All ranks took the same steps with the same scale, and hold different weights afterwards.
    Why: DDP never compares parameters again: the replicas drift apart.
    Remedy: Look for code that replaces parts of torch.
    See: https://github.com/pytorch/pytorch/issues/109191
    """
    steps = first_difference(recording, lambda step: step.bits)
    if not steps or off_gradients(recording) or first_difference(recording, lambda step: (step.stepped, step.scale)):
        return
    ranks, _ = odd_ranks(steps, lambda step: step.bits)
    yield likely(
        NOBODY,
        f"After steps with a GradScaler the weights on {ranks_at(recording, ranks)} are not those of the others",
        Evidence(
            text="ranks whose weights differ in some bit",
            value=len(ranks),
            expected=0,
            expected_from="equal weights, gradients and scales",
        ),
        *remedies(recording, "mixed_precision"),
    )


RankSteps = list[tuple[int, ScaledStep]]


def scaled_by_format(recording: Recording) -> list[list[tuple[int, Scaled]]]:
    """The results of each rank, for each format of autocast that was tested."""
    ranks = recording.facts(MixedPrecision)
    formats = zip(*[[(rank.rank or 0, scaled) for scaled in rank.fact.scaled] for rank in ranks], strict=False)
    return [list(ranks) for ranks in formats if not any(scaled.not_looked for _, scaled in ranks)]


def first_difference(recording: Recording, value_of: Callable[[ScaledStep], Hashable]) -> RankSteps:
    """The first step in which ranks differ, empty where there is none; later differences have the same cause."""
    for ranks in scaled_by_format(recording):
        for number in range(min(len(scaled.steps) for _, scaled in ranks)):
            steps = [(rank, scaled.steps[number]) for rank, scaled in ranks]
            if len({value_of(step) for _, step in steps}) > 1:
                return steps
    return []


def odd_ranks(steps: RankSteps, value_of: Callable[[ScaledStep], Hashable]) -> tuple[list[int], Hashable]:
    """The ranks that differ from most, and what most have."""
    usual = Counter(value_of(step) for _, step in steps).most_common(1)[0][0]
    return [rank for rank, step in steps if value_of(step) != usual], usual


def minority(ranks: Sequence[int], steps: RankSteps) -> Sequence[int]:
    """The ranks to blame: none where they are not a minority."""
    return ranks if len(ranks) * 2 < len(steps) else ()


def off_gradients(recording: Recording) -> list[tuple[int, gradient_code.OffGradient]]:
    """The gradients under autocast that are not the mean."""
    return [(rank, scaled.off) for ranks in scaled_by_format(recording) for rank, scaled in ranks if scaled.off]


def known_before(recording: Recording) -> bool:
    """Whether gradient_sync found an ordinary step wrong already."""
    return any(rank.fact.step.off for rank in recording.facts(GradientSync))
