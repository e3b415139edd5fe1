"""What ``run`` uses of ``logs``."""

from ddp_doctor.features.jobs.causes.findings import finding_of
from ddp_doctor.features.jobs.causes.judge import cause_in
from ddp_doctor.features.jobs.reading.assemble import fact_of_text
from ddp_doctor.model.finding import Finding

#: Some libraries print times without a year; here only their order counts.
_LEAP_YEAR = 2000


def named_cause(name: str, text: str, check: str) -> tuple[Finding, tuple[str, ...]] | None:
    """Return the finding on the cause that a process names, and the line that names it."""
    judged = cause_in(fact_of_text(name, text, _LEAP_YEAR))
    return None if judged is None else (finding_of(judged, check), tuple(line.text for line in judged.lines[:1]))
