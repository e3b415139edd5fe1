"""The functions of ``fit`` that the core calls: the report with the estimates, and the verdict on them."""

from collections.abc import Iterator, Sequence

from ddp_doctor.features.model.fit.facts import FitFact, FitMeasuredFact
from ddp_doctor.features.model.fit.report import FitReport
from ddp_doctor.features.model.fit.views import FIT, FIT_MEASURED, advice, asked, estimates, memory, to_take
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report


def with_estimates(report: Report, recording: Recording, _diagnosis: object) -> FitReport:
    """Return the report with the table of strategies."""
    room, fact = memory(recording), recording.first(FitFact)
    return FitReport(
        **dict(report),
        memory_bytes=room.size_bytes if room else None,
        memory_of=room.whose if room else "",
        ranks=fact.ranks if fact else 0,
        estimates=estimates(recording),
        advice=". ".join(advice(recording)),
    )


def healthy(recording: Recording, _findings: Sequence[Finding]) -> tuple[str, Sequence[str]]:
    """Return which strategy fits, and what it costs."""
    chosen, *more = advice(recording)
    fits = to_take(recording, asked(recording).strategy) is not None
    return f"Fits: {chosen}" if fits else chosen, more


def unmet(recording: Recording) -> Iterator[tuple[str, str]]:
    """Yield the model if there is no estimate of it, or ``--measure`` if no strategy was measured."""
    if recording.first(FitFact) is None:
        yield recording.options.typed_model, FIT
    elif asked(recording).measure and recording.first(FitMeasuredFact) is None:
        yield "--measure", FIT_MEASURED
