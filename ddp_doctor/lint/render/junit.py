"""The findings of ``lint`` as JUnit XML, which continuous integration shows: one test case for each file.

A finding below ``--fail-on`` is not a failure: it is part of the output of its case.
"""

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from ddp_doctor.lint.report import LintFinding, LintReport
from ddp_doctor.model.choices import FailOn, Severity
from ddp_doctor.render.finding_lines import concise
from ddp_doctor.render.text import plain


def render(report: LintReport, paths: Sequence[str], fail_on: FailOn) -> str:
    """One suite; ``paths`` are all files that were given, also those without a finding."""
    unread = {file.path: file for file in report.unread}
    by_path: dict[str, list[LintFinding]] = {path: [] for path in paths}
    for finding in report.findings:
        by_path.setdefault(finding.path, []).append(finding)
    bar = Severity(fail_on.value)
    suite = ET.Element("testsuite", name="ddp-doctor lint", tests=str(len(by_path)), skipped="0")
    failures = 0
    for path, findings in by_path.items():
        case = ET.SubElement(suite, "testcase", classname="ddp-doctor.lint", name=plain(path), time="0")
        if path in unread:
            reason = f"line {unread[path].line}: {unread[path].reason}"
            ET.SubElement(case, "error", message=plain(reason), type="could not be looked at")
        failing = [finding for finding in findings if finding.severity.at_least(bar)]
        failures += bool(failing)
        if failing:
            message = f"{failing[0].code} {failing[0].title}"
            failure = ET.SubElement(case, "failure", message=plain(message), type=failing[0].code)
            failure.text = "\n".join(_lines(failing))
        lesser = [finding for finding in findings if finding not in failing]
        if lesser:
            ET.SubElement(case, "system-out").text = "\n".join(_lines(lesser))
    suite.set("failures", str(failures))
    suite.set("errors", str(len(unread)))
    suite.set("time", f"{report.duration_s:.3f}")
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _lines(findings: Sequence[LintFinding]) -> Iterator[str]:
    for finding in findings:
        yield concise(finding)
        yield from (plain(f"  {remedy.summary}") for remedy in finding.remedies)
