"""DD820: a bucket size with which the step was faster than with the default."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from ddp_doctor.checks.ddp.step_time import thresholds, wording
from ddp_doctor.checks.ddp.step_time.summary import too_few_processors
from ddp_doctor.facts.ddp.step_time import StepTimeFact
from ddp_doctor.knowledge.ddp.buckets import MIB
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Proof, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import NOBODY, finding


@dataclass(frozen=True)
class Measured:
    """A bucket size: what was predicted, and the slowest rank's step in each round."""

    cap_mib: float
    predicted_s: float
    step_s: tuple[float, ...]

    def as_predicted(self) -> bool:
        """Whether the prediction is near enough to be believed."""
        off = median(self.step_s) / self.predicted_s
        return 1 / thresholds.PREDICTED_WITHIN <= off <= thresholds.PREDICTED_WITHIN

    def words(self) -> str:
        """``predicted 41 ms, measured 43 ms (40 to 47)``."""
        return f"predicted {wording.ms(self.predicted_s)}, measured {wording.spread(self.step_s)}"


def measured(recording: Recording) -> tuple[Measured, Measured] | None:
    """The default and the size that promised most; None where no size was worth measuring."""
    seen = [rank.fact.buckets for rank in recording.facts(StepTimeFact)]
    if not seen or any(one is None or len(one.trials) != 2 for one in seen):
        return None
    default, best = zip(*(one.trials for one in seen if one is not None), strict=True)
    both = [
        Measured(
            cap_mib=trials[0].cap_mib,
            predicted_s=trials[0].predicted_s,
            step_s=tuple(map(max, zip(*(one.step_s for one in trials), strict=False))),
        )
        for trials in (default, best)
    ]
    return (both[0], both[1]) if all(one.step_s for one in both) else None


@rule("DD820", "buckets-hide-too-little", Severity.INFO, StepTimeFact)
def hide_too_little(recording: Recording) -> Iterator[Draft]:
    """Gradient buckets of another size with which steps were faster than with the default.

    What it finds
        The size that is best by the measured times of all-reduces was tried beside the default of 25 MiB, in
        turns, and won in every round, by 5 % or more and by more than either differs from itself; and both
        took about as long as predicted. With the doctor's model it is a hint: what is best depends on the model's
        gradients.

    Why it matters
        Large buckets begin late and leave communication that nothing hides; small ones pay the latency often.

    Remedy
        bucket_cap_mb of DistributedDataParallel.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html;
        docs/explanation/step-time.md
    """
    both = measured(recording)
    if both is None or too_few_processors(recording) or not all(one.as_predicted() for one in both):
        return
    default, best = both
    gain = 1 - median(best.step_s) / median(default.step_s)
    if gain < thresholds.BUCKET_GAIN or max(best.step_s) >= min(default.step_s):
        return
    fact = recording.facts(StepTimeFact)[0].fact
    whose = f"your model {fact.model}" if fact.model else "a model of the doctor's"
    yield finding(
        NOBODY,
        f"Buckets of {best.cap_mib:g} MiB make a step{wording.of(fact.model)} {gain:.0%} shorter than the"
        f" default of {default.cap_mib:g} MiB",
        (
            Evidence(
                text=f"step with buckets of {one.cap_mib:g} MiB, {len(one.step_s)} rounds,"
                f" {wording.limits(one.step_s)}",
                value=median(one.step_s),
                unit="s",
                expected=one.predicted_s,
                expected_from="latency and bandwidth of the measured all-reduces, and the gradients' sizes",
            )
            for one in both
        ),
        _remedy(default, best, fact),
        confidence=Confidence.PROVED if fact.model else Confidence.POSSIBLE,
        detail=f"Measured with {whose}, {fact.gradient_bytes / MIB:.3g} MiB of gradients: {best.words()};"
        f" default {default.cap_mib:g}: {default.words()}.",
    )


def _remedy(default: Measured, best: Measured, fact: StepTimeFact) -> Remedy:
    where = "" if fact.model else "; for your own model, try sizes in the same proportion to its gradients"
    return Remedy(
        summary=f"DistributedDataParallel(..., bucket_cap_mb={best.cap_mib:g}){where}",
        scope="code",
        cost="more and smaller all-reduces: where latency grows, so does the step"
        if best.cap_mib < default.cap_mib
        else "communication begins later: where bandwidth shrinks, more of it shows",
        undo="leave bucket_cap_mb out",
        proof=Proof(
            status="proved" if fact.model else "not_tried",
            before=wording.spread(default.step_s),
            after=wording.spread(best.step_s),
            reason=None if fact.model else "it was measured with the doctor's model, not with yours",
        ),
    )
