"""The findings in one line each: for people who know them, for GitHub Actions, and for collectors of logs.

error DD401 GPU 0 and GPU 1 of node1 cannot copy to each other directly
train.py:88:5: warning DDL101 torch.nn.DataParallel: one process drives all GPUs
::error title=DD401 p2p-stalls-between-gpus::GPU 0 and GPU 1 of node1 cannot copy to each other directly%0A…
{"run_id": "20260105T101500Z-0a1b2c", "started_at": "2026-01-05T10:15:00Z", "code": "DD401", …}
"""

import json
import sys
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from ddp_doctor.model.choices import OutputFormat, Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.report import Report
from ddp_doctor.render.screen import VERDICT_STYLE, Console
from ddp_doctor.render.text import one_line

#: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
_ANNOTATIONS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


@runtime_checkable
class Placed(Protocol):
    """A finding with a place in a file."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


def show(report: Report, form: OutputFormat, out: Console) -> None:
    """Print the findings in a form other than full; the verdict, and lines for people, go to ``out``."""
    for finding in report.findings:
        if form is OutputFormat.CONCISE:
            out.print(concise(finding))
        elif form is OutputFormat.GITHUB:
            sys.stdout.write(f"{_annotation(finding)}\n")
        else:
            run = {"run_id": report.run_id, "started_at": report.started_at}
            sys.stdout.write(f"{json.dumps(run | finding.model_dump(mode='json'))}\n")
    sys.stdout.flush()
    out.print(one_line(report.summary), style=VERDICT_STYLE[report.verdict])


def concise(finding: Finding) -> str:
    """Return the place, the severity, the rule and the title."""
    where = f"{finding.path}:{finding.line}:{finding.column}: " if isinstance(finding, Placed) else ""
    return one_line(f"{where}{finding.severity.value} {finding.code} {finding.title}")


def _annotation(finding: Finding) -> str:
    properties = {"title": f"{finding.code} {finding.name}"}
    if isinstance(finding, Placed):
        properties |= {
            "file": finding.path,
            "line": str(finding.line),
            "col": str(finding.column),
            "endLine": str(finding.end_line),
            "endColumn": str(finding.end_column),
        }
    named = ",".join(f"{name}={_escaped(value, ',:')}" for name, value in properties.items())
    message = "\n".join(sentences(finding))
    return f"::{_ANNOTATIONS[finding.severity]} {named}::{_escaped(message)}"


def sentences(finding: Finding) -> Iterator[str]:
    """Yield the title, the detail and each fix, one per line."""
    yield concise(finding)
    if finding.detail:
        yield one_line(finding.detail)
    for remedy in finding.remedies:
        if remedy.proof.status != "disproved":
            yield f"Fix: {one_line(remedy.summary)}"


def _escaped(text: str, also: str = "") -> str:
    """Return the text with characters escaped that would end the command or a property, for GitHub's runner."""
    for character in f"%\r\n{also}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
