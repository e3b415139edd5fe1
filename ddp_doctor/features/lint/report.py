"""The report of ``lint``: findings that have a place in a file, the verdict, and what ``--json`` writes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ddp_doctor import __version__
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import CheckStatus, FailOn, Severity, Verdict, exit_code
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.report import CheckResult, Report, Tool, finished_at
from ddp_doctor.wording.findings import counted
from ddp_doctor.wording.nodes import name_list


class LintFinding(Finding):
    """A finding in a script. Lines and columns count from one; the end is the first column behind it."""

    path: str  # the script, as it was given
    line: int  # its first line
    column: int  # its first column
    end_line: int  # its last line
    end_column: int  # the first column after it

    def _identity(self) -> list[list[str]]:
        """Return the file and the text of the line, because edits above it change the line number."""
        return [[self.path, *(item.text for item in self.evidence)]]


class Unread(Frozen):
    """A file that could not be linted, and the reason."""

    path: str  # as it was given
    line: int  # where reading failed; 1 if unknown
    reason: str  # why it could not be read


class LintReport(Report):
    """The envelope, with the findings and the files."""

    findings: tuple[LintFinding, ...] = ()  # by file and line
    files: int = 0  # that were read and parsed
    suppressed: int = 0  # findings that a comment takes back
    unread: tuple[Unread, ...] = ()  # files that could not be judged


@dataclass(frozen=True)
class Linted:
    """The result for one file: findings by position, or the reason why it could not be linted."""

    findings: tuple[LintFinding, ...] = ()
    suppressed: int = 0
    unread: Unread | None = None
    failures: tuple[tuple[str, str], ...] = ()  # rules that crashed, with a traceback


def lint_report(linted: Sequence[Linted], fail_on: FailOn, started_at: datetime) -> LintReport:
    """Return the report on these files."""
    findings = tuple(_once_per_folder(finding for file in linted for finding in file.findings))
    unread = tuple(file.unread for file in linted if file.unread is not None)
    failed = sorted({code for file in linted for code, _ in file.failures})
    severities = {finding.severity for finding in findings}
    verdict = Verdict.DEGRADED if Severity.WARNING in severities else Verdict.HEALTHY
    if Severity.ERROR in severities:
        verdict = Verdict.UNHEALTHY
    elif not linted or unread or failed:
        verdict = Verdict.UNSURE
    begun = started_at.isoformat(timespec="seconds").replace("+00:00", "Z")
    duration_s = (datetime.now(timezone.utc) - started_at).total_seconds()
    return LintReport(
        tool=Tool(version=__version__),
        run_id=f"{started_at:%Y%m%dT%H%M%SZ}-lint",
        started_at=begun,
        finished_at=finished_at(begun, duration_s),
        duration_s=round(duration_s, 3),
        verdict=verdict,
        exit_code=exit_code(verdict, fail_on).value,
        summary=_summary(findings, failed, linted),
        checks=(_check(findings, unread, failed, duration_s),),
        findings=findings,
        files=len(linted) - len(unread),
        suppressed=sum(file.suppressed for file in linted),
        unread=unread,
    )


#: Rules on a directory, which only its first script reports.
_OF_FOLDERS = ("DDL170",)


def _once_per_folder(findings: Iterable[LintFinding]) -> Iterator[LintFinding]:
    seen = set[tuple[str, str]]()
    for finding in findings:
        key = str(Path(finding.path).parent), finding.title
        if finding.code not in _OF_FOLDERS or key not in seen:
            yield finding
        seen.add(key)


def _check(
    findings: Sequence[LintFinding], unread: Sequence[Unread], failed: Sequence[str], duration_s: float
) -> CheckResult:
    status, reason = CheckStatus.PASSED, None
    if any(finding.severity.at_least(Severity.WARNING) for finding in findings):
        status = CheckStatus.FOUND
    if unread:
        status, reason = CheckStatus.FAILED, f"{unread[0].path}:{unread[0].line} {unread[0].reason}"
    elif failed:
        status, reason = CheckStatus.FAILED, f"rule {failed[0]} of ddp-doctor failed"
    return CheckResult(
        id="lint", title="Training scripts", status=status, reason=reason, duration_s=round(duration_s, 3)
    )


def _summary(findings: Sequence[LintFinding], failed: Sequence[str], linted: Sequence[Linted]) -> str:
    by_severity = [
        counted(count, "info finding" if severity is Severity.INFO else severity.value)
        for severity in (Severity.ERROR, Severity.WARNING, Severity.INFO)
        if (count := sum(finding.severity is severity for finding in findings))
    ]
    unread = sum(file.unread is not None for file in linted)
    read = len(linted) - unread
    where = f" in {counted(read, 'file')}" if read else ""
    sentences = (
        [f"Found {name_list(by_severity)}{where}."] if by_severity else [f"No problems found{where}."] * bool(read)
    )
    if suppressed := sum(file.suppressed for file in linted):
        sentences.append(f"{suppressed} suppressed.")
    if unread:
        sentences.append(f"{counted(unread, 'file')} could not be checked.")
    if failed:
        sentences.append(f"Rule {failed[0]} of ddp-doctor failed.")
    return " ".join(sentences)
