"""The findings of ``lint`` as JUnit XML: one test case for each file."""

from collections.abc import Sequence

from ddp_doctor.features.lint.report import LintReport
from ddp_doctor.model.choices import FailOn
from ddp_doctor.model.finding import Finding
from ddp_doctor.render.junit import Case, document


def render(report: LintReport, paths: Sequence[str], fail_on: FailOn) -> str:
    """Render one suite; ``paths`` are all given files, including those without a finding."""
    unread = {file.path: f"line {file.line}: {file.reason}" for file in report.unread}
    by_path: dict[str, list[Finding]] = {path: [] for path in paths}
    for finding in report.findings:
        by_path.setdefault(finding.path, []).append(finding)
    cases = [Case(path, findings, fail_on, error=unread.get(path)) for path, findings in by_path.items()]
    return document("ddp-doctor lint", cases, report.duration_s)
