"""The report for people. Findings first worst first, the verdict last: it is what stays on the screen."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from ddp_doctor.model.choices import CheckStatus, Severity, Verdict
from ddp_doctor.model.finding import Evidence, Finding, Remedy, Setting
from ddp_doctor.model.report import CheckResult, Report
from ddp_doctor.render import table
from ddp_doctor.render.plain import one_line, plain

if TYPE_CHECKING:
    from rich.console import Console

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_VERDICT_STYLE = {Verdict.HEALTHY: "bold green", Verdict.SICK: "bold red", Verdict.UNSURE: "bold yellow"}
_MARK = {
    CheckStatus.PASSED: ("ok", "green"),
    CheckStatus.FOUND: ("!!", "red"),
    CheckStatus.SKIPPED: ("--", "dim"),
    CheckStatus.TIMED_OUT: ("??", "yellow"),
    CheckStatus.FAILED: ("??", "yellow"),
}
#: A screen has room for no more; rules group what is alike, and the JSON report holds all.
_MOST_EVIDENCE = 24


def console(stream: TextIO, *, width: int | None = None, is_piped: bool = False) -> "Console":
    """A console that colours only terminals, and prints every string as it is but for control characters.

    ``is_piped``: the stream looks like a terminal and is none.
    """
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(plain(text), **options)

        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 - rich would exit with 1, which is the code of a sick node

    return PlainConsole(
        file=stream,
        force_terminal=False if is_piped else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        width=width,
    )


def show(report: Report, out: "Console", saved_as: str | None = None) -> None:
    """Print the whole report."""
    _show_checks(report, out)
    _show_table(report, out)
    for finding in report.findings:
        _show_finding(finding, out)
    out.print()
    if saved_as:
        out.print(f"Recording: {saved_as}", style="dim")
    out.print(one_line(report.summary), style=_VERDICT_STYLE[report.verdict])


def show_short(report: Report, out: "Console", head: str, saved_as: str | None = None) -> None:
    """What a node shows that is not the head: the errors by title, the verdict, and where all of it stands."""
    out.print()
    for finding in report.findings:
        if finding.severity is Severity.ERROR:
            _show_title(finding, out)
    out.print(f"The full report is the head's, {one_line(head)}.", style="dim")
    if saved_as:
        out.print(f"Recording: {saved_as}", style="dim")
    out.print(one_line(report.summary), style=_VERDICT_STYLE[report.verdict])


def _show_checks(report: Report, out: "Console") -> None:
    out.print()
    for check in report.checks:
        mark, style = _MARK[check.status]
        line = f"{one_line(check.id):<14} {_what_became(check)}"
        out.print(f" {mark} ", style=style, end="")
        out.print(line, style="dim" if check.status is CheckStatus.SKIPPED else None)


def _what_became(check: CheckResult) -> str:
    reason = one_line(check.reason or "")
    but = f"; not tested {reason[:160]}" if reason else ""  # on some of several nodes
    if check.status is CheckStatus.PASSED:
        return f"{check.title} ({check.duration_s:.2f} s){but}"
    if check.status is CheckStatus.FOUND:
        return f"{check.title}: see below{but}"
    word = {"timed_out": "timed out", "skipped": "not tested"}.get(check.status.value, check.status.value)
    return f"{word}: {reason[:160]}"


def _show_table(report: Report, out: "Console") -> None:
    rows = table.chosen(table.rows(report.measurements))
    if not rows:
        return
    out.print()
    out.print(f" {'size':>12} {'time':>10} {'algbw':>8} {'busbw':>8} {'#wrong':>7}", style="dim")
    out.print(
        f" {'(B)':>12} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8}          all_reduce float32 sum, slowest rank",
        style="dim",
    )
    for size, time_us, algbw, busbw, wrong in rows:
        out.print(f" {size:>12} {time_us:>10.1f} {algbw:>8.2f} {busbw:>8.2f} {wrong:>7}")
    untested = [one.value for one in report.measurements if one.name == "allreduce_untested_from"]
    if untested:
        out.print(f" {min(untested):>12.0f} and above: not tested, time or memory was short", style="dim")


def _show_finding(finding: Finding, out: "Console") -> None:
    out.print()
    _show_title(finding, out)
    for line in _finding_lines(finding):
        out.print(f"  {line}".replace("\n", "\n      "))


def _show_title(finding: Finding, out: "Console") -> None:
    out.print(f"{finding.severity.value.upper()} {finding.code} ", style=_STYLE[finding.severity], end="")
    out.print(one_line(finding.title), style="bold")


def _finding_lines(finding: Finding) -> Iterator[str]:
    if finding.detail:
        yield one_line(finding.detail)
    shown, left = finding.evidence[:_MOST_EVIDENCE], len(finding.evidence) - _MOST_EVIDENCE
    for item in shown:
        yield f"- {one_line(evidence_text(item))}"
    if left > 0:
        yield f"- and {left} lines more in the JSON report"
    for remedy in finding.remedies:
        yield from remedy_lines(remedy)
    yield f"({finding.confidence.value}; more: ddp-doctor explain {finding.code})"


def evidence_text(item: Evidence) -> str:
    """Measured, expected, and from where."""
    text = item.text
    if item.value is not None:
        text += f": {item.value:g}{' ' + item.unit if item.unit else ''}"
    if item.expected is not None:
        source = f", {item.expected_from}" if item.expected_from else ""
        text += f" (expected {item.expected:g}{' ' + item.unit if item.unit else ''}{source})"
    elif item.expected_from:
        text += f" ({item.expected_from})"
    return text


def remedy_lines(remedy: Remedy) -> Iterator[str]:
    """The remedy with its exact lines to paste, its cost and the way back."""
    yield f"Remedy: {one_line(remedy.summary)}"
    for setting in remedy.settings:
        yield f"    {setting_line(setting)}"
    for command in remedy.commands:
        yield f"    {command}"
    if remedy.cost:
        yield f"  Cost: {remedy.cost}"
    if remedy.undo:
        yield f"  Undo: {remedy.undo}"
    if remedy.settings:
        yield f"  {_proof(remedy)}"


def _proof(remedy: Remedy) -> str:
    proof = remedy.proof
    if proof.status == "not_tried":
        return f"Not tried{': ' + proof.reason if proof.reason else ''}"
    return f"{proof.status.capitalize()}: {proof.before} -> {proof.after}"


def setting_line(setting: Setting) -> str:
    """The line for a shell."""
    if setting.action == "unset":
        return f"unset {setting.name}"
    return f"export {setting.name}={shlex.quote(setting.value or '')}"
