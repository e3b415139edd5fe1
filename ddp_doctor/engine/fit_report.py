"""The memory report: what each strategy needs, which strategies fit, and which one to use."""

from ddp_doctor.facts.ddp.fit import FitFact
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import FitReport, Report
from ddp_doctor.views.fit import advice, estimates, memory


def with_estimates(report: Report, recording: Recording) -> FitReport:
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
