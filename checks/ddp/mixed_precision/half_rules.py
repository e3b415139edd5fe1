"""DD734-DD736, DD738: the mean of gradients in half precision overflows, is wrong, or loses too much."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.mixed_precision.scaler_rules import known_before
from ddp_doctor.facts.ddp.gradients import Half, MixedPrecision
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.knowledge.ddp.gradient_shares import NOTABLE_LOSS
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import CHANGES_TRAINING, in_code
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import NOBODY, finding, likely
from ddp_doctor.wording.ranks import rank_culprits, ranks_at

_MASTER = in_code(
    "Keep weights and gradients in float32 and autocast the forward, so that float32 is reduced",
    cost="Twice the memory and traffic of half-precision gradients",
    untried=CHANGES_TRAINING,
    references=("https://pytorch.org/docs/stable/amp.html",),
)


@rule("DD734", "half-precision-mean-overflows", Severity.ERROR, MixedPrecision)
def half_precision_mean_overflows(recording: Recording) -> Iterator[Draft]:
    """Finds: Every rank has the same large gradient in float16 or bfloat16, whose mean fits into the format, and what
        arrives is infinite: the sum was taken before the division.
    Why: DDP divides first, so that only a gradient which is too large itself overflows. Here gradients overflow that
        are smaller by the number of ranks, and the more ranks, the smaller.
    Remedy: Look for a communication hook or code that replaces DDP's reduction; reduce float32 meanwhile.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    for dtype, by_rank in _halves(recording).items():
        infinite = {rank: half for rank, half in by_rank.items() if half.large_mean is None}
        if not infinite:
            continue
        some = len(infinite) < len(by_rank)
        large = next(iter(infinite.values())).large
        yield likely(
            rank_culprits(recording, MixedPrecision, sorted(infinite) if some else ()),
            f"The mean of {dtype} gradients overflows on {ranks_at(recording, infinite)}: gradients of {large:g} are"
            " summed before they are divided by the number of ranks",
            Evidence(
                text=f"largest element of the {dtype} gradient is not finite",
                expected=large,
                expected_from="the mean of equal numbers",
            ),
            _MASTER,
            *remedies(recording, "mixed_precision"),
        )


@rule("DD735", "half-precision-mean-wrong", Severity.ERROR, MixedPrecision)
def half_precision_mean_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: The mean of gradients in float16 or bfloat16 is off by more than roundings of the format explain.
    Why: A model in half precision learns from a wrong mean, and no error is raised.
    Remedy: Keep gradients in float32; look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    for dtype, by_rank in {} if known_before(recording) else _halves(recording).items():
        wrong = {rank: half.off for rank, half in by_rank.items() if half.off}
        if not wrong:
            continue
        rank, worst = max(wrong.items(), key=lambda entry: entry[1].max_abs_error or 0.0)
        yield finding(
            rank_culprits(recording, MixedPrecision, sorted(wrong) if len(wrong) < len(by_rank) else ()),
            f"The {dtype} gradient on {ranks_at(recording, wrong)} is wrong:"
            f" {gradient_code.words(worst.held, len(by_rank))}",
            worst.evidence(f"{dtype} gradient on rank {rank}"),
            _MASTER,
            *remedies(recording, "mixed_precision"),
            confidence=Confidence.POSSIBLE if worst.held.holds == "other" else Confidence.LIKELY,
        )


@rule("DD736", "half-precision-mean-loses-shares", Severity.INFO, MixedPrecision)
def half_precision_mean_loses_shares(recording: Recording) -> Iterator[Draft]:
    """Finds: The mean of gradients in float16 or bfloat16 is off by several hundredths, through rounding alone: what
        one rank adds is small beside the sum so far, and bfloat16 has 8 bits.
    Why: The loss grows with the number of ranks. Only models that keep their gradients in half precision have it, or
        compress them; autocast reduces float32.
    Remedy: Keep weights and gradients in float32 and autocast the forward.
    See: https://pytorch.org/docs/stable/amp.html
    """
    for dtype, by_rank in _halves(recording).items():
        if any(half.off for half in by_rank.values()):
            continue
        loss = max(half.relative_error or 0.0 for half in by_rank.values())
        if loss > NOTABLE_LOSS:
            yield likely(
                NOBODY,
                f"{dtype} gradients averaged over {len(by_rank)} ranks are off by {loss:.0%}, through rounding",
                Evidence(
                    text=f"relative error of the worst element of the mean in {dtype}",
                    value=round(loss, 4),
                    expected=0.0,
                    expected_from=gradient_code.KNOWN,
                ),
                _MASTER,
            )


@rule("DD738", "precision-not-tested", Severity.INFO, MixedPrecision)
def precision_not_tested(recording: Recording) -> Iterator[Draft]:
    """Finds: A format that could not be tested here, and why: a backend that does not reduce it, a torch without a
        GradScaler or autocast for this device.
    Why: What was not tested is not known to be right.
    Remedy: None, unless a job of yours uses the format.
    See: https://pytorch.org/docs/stable/amp.html
    """
    reasons: dict[str, list[str]] = {}
    for rank in recording.facts(MixedPrecision):
        for scaled in rank.fact.scaled:
            reasons.setdefault(scaled.not_looked or "", []).append(f"a GradScaler with {scaled.dtype}")
        for half in rank.fact.halves:
            reasons.setdefault(half.not_looked or "", []).append(f"gradients in {half.dtype}")
    for reason, formats in reasons.items():
        if reason:
            yield likely(NOBODY, f"Not tested: {', '.join(dict.fromkeys(formats))}", Evidence(text=reason))


def _halves(recording: Recording) -> dict[str, dict[int, Half]]:
    """The results of each rank, for each format that was tested."""
    found: dict[str, dict[int, Half]] = {}
    for rank in recording.facts(MixedPrecision):
        for half in rank.fact.halves:
            if half.not_looked is None:
                found.setdefault(half.dtype, {})[rank.rank or 0] = half
    return found
