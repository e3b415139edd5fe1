"""compare: a run with an earlier run or a baseline, or the traces of two jobs."""

from collections.abc import Sequence

from ddp_doctor.facts.cluster import BaselineFact, TracesFact
from ddp_doctor.features import Feature
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.wording.preflight import reached


def _healthy(recording: Recording, findings: Sequence[Finding]) -> tuple[str, Sequence[str]]:
    changed = "change in the step" if recording.first(TracesFact) else "slowdown"
    fact = recording.first(BaselineFact)
    of_job = (reached(fact, fact.preflight),) if fact is not None and fact.preflight is not None else ()
    return f"No {changed} beyond noise", (*of_job, *_differences(findings))


def _unclear(findings: Sequence[Finding]) -> tuple[str, Sequence[str]] | None:
    """Return why the verdict is unsure if too few runs show whether a slowdown is noise."""
    slower = (found.title for found in findings if found.code == "DD830" and found.severity is Severity.INFO)
    reasons = ((f"{title}; how much of that is noise is unknown", _differences(findings)) for title in slower)
    return next(reasons, None)


def _differences(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(finding.title for finding in findings if finding.code == "DD831")


FEATURE = Feature(report=Report, healthy=_healthy, label="Slower", unclear=_unclear)
