"""The findings of ``lint`` as SARIF 2.1.0, which code-scanning services and editors read.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from ddp_doctor.features.lint.report import LintFinding, LintReport, Unread
from ddp_doctor.model.base import Json
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.rule import Described

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(report: LintReport, rules: Sequence[Described]) -> str:
    """Render one log with one run; ``rules`` are the applied rules."""
    index = {rule.code: number for number, rule in enumerate(rules)}
    driver: Json = {
        "name": report.tool.name,
        "semanticVersion": report.tool.version,
        "rules": [_rule(rule) for rule in rules],
    }
    invocation: Json = {
        "executionSuccessful": not report.unread,
        "exitCode": report.exit_code,
        "startTimeUtc": report.started_at,
        "toolExecutionNotifications": [_notification(file) for file in report.unread],
    }
    run: Json = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": [_result(finding, index) for finding in report.findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(rule: Described) -> Json:
    words = rule.text.replace("``", "`")
    first = words.partition("\n")[0]
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": first},
        "fullDescription": {"text": first},  # shown in lists, and cut at 1024 characters by GitHub
        "help": {"text": words},  # shown next to a result
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: LintFinding, index: dict[str, int]) -> Json:
    text = " ".join([finding.title.rstrip(".") + ".", finding.detail]).strip()
    remedies = "".join(f" Fix: {remedy.summary.rstrip('.')}." for remedy in finding.remedies)
    found: Json = {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": text + remedies},
        "locations": [_location(finding.path, _region(finding))],
    }
    if finding.code in index:
        found["ruleIndex"] = index[finding.code]
    return found


def _region(finding: LintFinding) -> dict[str, Any]:
    region: dict[str, Any] = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    if finding.evidence:
        region["snippet"] = {"text": finding.evidence[0].text}
    return region


def _location(path: str, region: dict[str, Any]) -> Json:
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(path)}, "region": region}}


def _uri(path: str) -> str:
    """Return a path as a reference: relative paths stay relative to the working directory."""
    text = quote(PurePath(path).as_posix(), errors="replace")
    return f"file://{text}" if text.startswith("/") else text


def _notification(unread: Unread) -> Json:
    return {
        "level": "error",
        "message": {"text": f"could not be checked: {unread.reason}"},
        "locations": [_location(unread.path, {"startLine": max(unread.line, 1)})],
    }
