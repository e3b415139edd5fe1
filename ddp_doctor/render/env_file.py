"""The settings that the findings recommend, as a file to ``source``: a comment per line says why."""

import re
import shlex
from collections.abc import Iterator

from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding, Remedy, Setting
from ddp_doctor.model.report import Report
from ddp_doctor.render.plain import plain

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def render(report: Report) -> str:
    """``export`` and ``unset`` lines with finding, proof and undo; conflicts are shown, not merged.

    A candidate that was not tried stands there as a comment: sourced into a healthy job it could harm.
    """
    lines = [f"# Settings recommended by ddp-doctor {report.tool.version}, run {report.run_id}"]
    given: dict[str, str | None] = {}
    for finding, remedy, setting in _settings(report):
        if not _NAME.fullmatch(setting.name):
            continue  # nothing from outside may break out of its line
        value = None if setting.action == "unset" else setting.value or ""
        if given.get(setting.name, value) != value:
            conflict = f"{finding.code} wants another value; conflict, not applied: {_assignment(setting)}"
            lines.append(_commented(conflict))
        elif setting.name not in given and _is_sure(finding, remedy, setting):
            given[setting.name] = value
            lines += [_comment(finding, remedy, setting), _assignment(setting)]
        elif setting.name not in given:
            candidate = _commented(f"{_assignment(setting)}   # a candidate, not tried")
            lines += [_comment(finding, remedy, setting), candidate]
    if not given:
        lines.append(
            "# nothing to set" if len(lines) == 1 else "# nothing is set; take the # off to try a candidate"
        )
    return "\n".join(lines) + "\n"


def _is_sure(finding: Finding, remedy: Remedy, setting: Setting) -> bool:
    """Proved, needed by an error, or no more than a leftover that goes away."""
    leftover = setting.action == "unset" and finding.code.startswith("DD1")
    return leftover or finding.severity is Severity.ERROR or remedy.proof.status == "proved"


def _settings(report: Report) -> Iterator[tuple[Finding, Remedy, Setting]]:
    for finding in report.findings:
        for remedy in finding.remedies:
            if remedy.proof.status != "disproved":
                for setting in remedy.settings:
                    yield finding, remedy, setting


def _comment(finding: Finding, remedy: Remedy, setting: Setting) -> str:
    proof = remedy.proof
    tried = "not tried" if proof.status == "not_tried" else f"tried: {proof.before} -> {proof.after}"
    parts = [
        finding.code,
        setting.why or remedy.summary,
        tried,
        f"undo: {remedy.undo}" if remedy.undo else "",
    ]
    return _commented("; ".join(part for part in parts if part))


def _commented(text: str) -> str:
    """One line whatever stands in ``text``: a line of its own would be run by the shell."""
    return "# " + plain(" ".join(line.strip() for line in text.splitlines()))


def _assignment(setting: Setting) -> str:
    if setting.action == "unset":
        return f"unset {setting.name}"
    return f"export {setting.name}={shlex.quote(setting.value or '')}"
