"""What ``explain`` and ``run`` use of ``logs``."""

from functools import cache

from ddp_doctor.features.jobs.causes.findings import finding_of
from ddp_doctor.features.jobs.causes.judge import cause_in
from ddp_doctor.features.jobs.job_causes import SIGNS
from ddp_doctor.features.jobs.job_causes.kinds import JobCause
from ddp_doctor.features.jobs.job_causes.signs import Sign
from ddp_doctor.features.jobs.reading.assemble import fact_of_text
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.known_error import KnownError, Page
from ddp_doctor.settings.table import variables

#: Some libraries print times without a year; here only their order counts.
_LEAP_YEAR = 2000


def named_cause(name: str, text: str, check: str) -> tuple[Finding, tuple[str, ...]] | None:
    """Return the finding on the cause that a process names, and the line that names it."""
    judged = cause_in(fact_of_text(name, text, _LEAP_YEAR))
    return None if judged is None else (finding_of(judged, check), tuple(line.text for line in judged.lines[:1]))


@cache
def errors() -> tuple[KnownError, ...]:
    """Return the texts in a job's output that have a meaning."""
    return tuple(
        KnownError(
            sign.id,
            sign.words,
            sign.pattern,
            _page(sign, cause),
            cause.name if cause else "",
            cause.code if cause and sign.confidence is not Confidence.POSSIBLE else "",
            sign.run_code,
        )
        for sign, cause in SIGNS.values()
    )


def _page(sign: Sign, cause: JobCause | None) -> Page | None:
    """Return the page of the sign's cause, or else the sign's own page, or None."""
    if cause is None or sign.beside:
        return sign.page
    settings = {setting.name for remedy in cause.remedies for setting in remedy.settings} & {*variables()}
    return Page(cause.finds, (cause.code, *cause.found_by), cause.references[0], tuple(sorted(settings)))
