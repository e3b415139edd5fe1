"""JUnit XML for continuous integration: a test case for each check of a run.

A finding below ``--fail-on`` is not a failure but part of the output of its case. A check without a result is an error.
So is a verdict that no other case shows: the suite passes only if the verdict is healthy or degraded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from ddp_doctor.model.choices import USABLE, CheckStatus, FailOn, Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.render.finding_lines import sentences
from ddp_doctor.render.text import plain


@dataclass(frozen=True)
class Case:
    """A test case: a failure by its findings at or above ``fail_on``; otherwise an error, skipped or passed."""

    name: str
    findings: Sequence[Finding]
    fail_on: FailOn
    error: str | None = None  # why it has no result
    skipped: str | None = None  # why it did not run
    duration_s: float = 0.0

    @property
    def failing(self) -> list[Finding]:
        """The findings that make it fail."""
        return [finding for finding in self.findings if finding.severity.at_least(Severity(self.fail_on.value))]


def render(report: Report, recording: Recording) -> str:
    """Return the report of a run."""
    return document("ddp-doctor run", list(_cases(report, recording.options.fail_on)), report.duration_s)


def document(name: str, cases: Sequence[Case], duration_s: float) -> str:
    """Return a suite of these cases."""
    suite = ET.Element("testsuite", name=name, tests=str(len(cases)))
    for case in cases:
        element = ET.SubElement(suite, "testcase", classname=name.replace(" ", "."), name=plain(case.name))
        element.set("time", f"{case.duration_s:.3f}")
        failing = case.failing
        if failing:
            message = f"{failing[0].code} {failing[0].title}"
            ET.SubElement(element, "failure", message=plain(message), type=failing[0].code).text = _text(failing)
        elif case.error is not None:
            ET.SubElement(element, "error", message=plain(case.error), type="no result")
        elif case.skipped is not None:
            ET.SubElement(element, "skipped", message=plain(case.skipped))
        if lesser := [finding for finding in case.findings if finding not in failing]:
            ET.SubElement(element, "system-out").text = _text(lesser)
    for counted, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(counted, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", f"{duration_s:.3f}")
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _text(findings: Sequence[Finding]) -> str:
    return "\n".join(line for finding in findings for line in sentences(finding))


def _cases(report: Report, fail_on: FailOn) -> Iterator[Case]:
    """Yield a case for each check, and one for the findings without a check."""
    by_check: dict[str, list[Finding]] = {check.id: [] for check in report.checks}
    elsewhere: list[Finding] = []
    for finding in report.findings:
        own = [evidence.check for evidence in finding.evidence if evidence.check in by_check]
        (by_check[own[0]] if own else elsewhere).append(finding)
    is_told = report.verdict in USABLE
    for check in report.checks:
        reason = check.reason or check.title
        has_no_result = check.status in (CheckStatus.FAILED, CheckStatus.TIMED_OUT)
        case = Case(
            check.id,
            by_check[check.id],
            fail_on,
            error=reason if has_no_result else None,
            skipped=reason if check.status is CheckStatus.SKIPPED else None,
            duration_s=check.duration_s,
        )
        is_told = is_told or has_no_result or bool(case.failing)
        yield case
    if elsewhere or not is_told:
        yield Case("verdict", elsewhere, fail_on, error=None if is_told else report.summary)
