"""The findings of ``lint`` as text, by file; each starts with a position that editors and terminals can open.

train.py
  train.py:88:5: warning DDL101 torch.nn.DataParallel: one process drives all GPUs
      model = nn.DataParallel(model)
      Fix: Wrap the model in DistributedDataParallel
"""

from itertools import groupby
from textwrap import indent
from typing import TYPE_CHECKING

from ddp_doctor.features.lint.report import LintFinding, LintReport
from ddp_doctor.model.choices import Severity, Verdict
from ddp_doctor.render.layout import folded, width_of
from ddp_doctor.render.screen import STYLE, VERDICT_STYLE
from ddp_doctor.render.text import one_line

if TYPE_CHECKING:
    from rich.console import Console


def show(report: LintReport, out: "Console", *, quiet: bool = False) -> None:
    """Print the report; ``quiet`` omits info findings, and the last line if there are no findings."""
    findings = shown(report, quiet=quiet).findings
    for path, of_file in groupby(findings, lambda finding: finding.path):
        out.print(one_line(path), style="bold")
        for finding in of_file:
            _show_finding(finding, out)
        out.print()
    for file in report.unread:
        out.print(f"{one_line(file.path)}:{file.line}:1: not checked: {one_line(file.reason)}", style="yellow")
    if report.unread:
        out.print()
    if findings:
        worst = min(findings, key=lambda finding: list(Severity).index(finding.severity))
        out.print(f"(more: ddp-doctor explain {worst.code})", style="dim")
    if not quiet or report.verdict is not Verdict.HEALTHY:
        out.print(folded(one_line(report.summary), width_of(out)), style=VERDICT_STYLE[report.verdict])


def shown(report: LintReport, *, quiet: bool) -> LintReport:
    """Return the report; ``quiet`` omits info findings."""
    if not quiet:
        return report
    findings = tuple(finding for finding in report.findings if finding.severity.at_least(Severity.WARNING))
    return report.model_copy(update={"findings": findings})


def _show_finding(finding: LintFinding, out: "Console") -> None:
    from rich.text import Text

    width = width_of(out)
    place, mark = (
        f"{one_line(finding.path)}:{finding.line}:{finding.column}:",
        f"{finding.severity.value}\xa0{finding.code}",  # joined by a no-break space
    )
    text = Text(folded(f"{place} {mark} {one_line(finding.title)}", width, indent=2, hang=4))
    text.highlight_words([mark.replace("\xa0", " ")], STYLE[finding.severity])
    out.print(text)
    for evidence in finding.evidence:
        out.print(f"      {one_line(evidence.text)}", style="dim")
    if finding.detail:
        out.print(folded(one_line(finding.detail), width, indent=6))
    for remedy in finding.remedies:
        out.print(folded(f"Fix: {one_line(remedy.summary)}", width, indent=6, hang=2))
        for line in remedy.commands:
            out.print(indent(line, " " * 10))
