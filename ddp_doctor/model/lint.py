"""What ``lint --json`` writes: the envelope, with findings that have a place in a file."""

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.report import Report


class LintFinding(Finding):
    """A finding in a script. Lines and columns count from one; the end is the first column behind it."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


class Unread(Frozen):
    """A file that could not be looked at, and why."""

    path: str
    line: int
    reason: str


class LintReport(Report):
    """The envelope, with what was looked at."""

    findings: tuple[LintFinding, ...] = ()
    files: int = 0  # that were read and parsed
    suppressed: int = 0  # findings that a comment takes back
    unread: tuple[Unread, ...] = ()
