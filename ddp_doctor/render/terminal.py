"""The report for people. The verdict comes last, because that stays on the screen; findings begin with the worst."""

from collections.abc import Iterable, Sequence
from textwrap import fill, indent
from typing import TYPE_CHECKING

from ddp_doctor.model.choices import CheckStatus, Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.report import CheckResult, Report
from ddp_doctor.render import findings, tables
from ddp_doctor.render.findings import Line
from ddp_doctor.render.screen import STYLE, VERDICT_STYLE
from ddp_doctor.render.text import one_line

if TYPE_CHECKING:
    from rich.console import Console

_MARK = {
    CheckStatus.PASSED: ("ok", "green"),
    CheckStatus.FOUND: ("!!", "red"),
    CheckStatus.SKIPPED: ("--", "dim"),
    CheckStatus.TIMED_OUT: ("??", "yellow"),
    CheckStatus.FAILED: ("??", "yellow"),
}
#: The JSON report has the whole of a longer reason.
_LONGEST_REASON = 160
#: Less prints as 0.00 s.
_SHORTEST_S = 0.005


def show(report: Report, out: "Console", saved_as: str | None = None, transports: str = "") -> None:
    """Print the whole report; ``transports`` is the table of what NCCL used between the ranks."""
    _show_checks(report, out)
    _show_table(report, out)
    if transports:
        out.print()
        out.print(indent(transports, " "), soft_wrap=True)
    _show_gpus(report, out)
    _show_lines(tables.bucket_lines(report.measurements), out)
    _show_lines(tables.step_lines(report.measurements), out)
    for finding in report.findings:
        _show_finding(finding, out)
    out.print()
    if saved_as:
        out.print(f"Recording: {saved_as}", style="dim")
    _show_verdict(report, out)


def show_short(report: Report, out: "Console", head: str, saved_as: str | None = None) -> None:
    """What a node other than the head shows: the titles of errors, the verdict, and where the full report is."""
    out.print()
    for finding in report.findings:
        if finding.severity is Severity.ERROR:
            _show_title(finding, out)
    out.print(f"The full report is the head's, {one_line(head)}.", style="dim")
    if saved_as:
        out.print(f"Recording: {saved_as}", style="dim")
    _show_verdict(report, out)


def _show_checks(report: Report, out: "Console") -> None:
    out.print()
    for alike in _grouped(report.checks):
        mark, style = _MARK[alike[0].status]
        ids = one_line(", ".join(check.id for check in alike))
        line = f"{ids:<15} {' ' if len(alike) > 1 else ''}{_what_became(alike[0])}"
        out.print(f" {mark} ", style=style, end="")
        out.print(line, style="dim" if alike[0].status is CheckStatus.SKIPPED else None)


def _grouped(checks: Sequence[CheckResult]) -> Iterable[list[CheckResult]]:
    """The checks in order; those without a result for the same reason are grouped at the place of the first."""
    groups: dict[object, list[CheckResult]] = {}
    for check in checks:
        has_result = check.status in (CheckStatus.PASSED, CheckStatus.FOUND)
        groups.setdefault(check.id if has_result else (check.status, check.reason), []).append(check)
    return groups.values()


def _what_became(check: CheckResult) -> str:
    reason = one_line(check.reason or "")
    reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 3]}..."
    but = f"; not tested {reason}" if reason else ""  # on some of several nodes
    if check.status is CheckStatus.PASSED:
        took = f" ({check.duration_s:.2f} s)" if check.duration_s >= _SHORTEST_S else ""
        return f"{check.title}{took}{but}"
    if check.status is CheckStatus.FOUND:
        return f"{check.title}: see below{but}"
    word = {"timed_out": "timed out", "skipped": "not tested"}.get(check.status.value, check.status.value)
    return f"{word}: {reason}"


def _show_table(report: Report, out: "Console") -> None:
    rows = tables.chosen(tables.rows(report.measurements))
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
    untested = [
        measurement.value
        for measurement in report.measurements
        if measurement.name == "allreduce_untested_from"
    ]
    if untested:
        out.print(f" {min(untested):>12.0f} and above: not tested, time or memory was short", style="dim")


def _show_gpus(report: Report, out: "Console") -> None:
    """What each rank's GPU did at work."""
    rows = tables.gpu_rows(report.measurements)
    if not rows:
        return
    shown = tables.chosen_gpus(rows)
    which = (
        f"the {len(shown)} slowest of {len(rows)}" if len(shown) < len(rows) else "each rank's GPU at work"
    )
    out.print()
    out.print(
        f" {'rank':>6} {'GPU':>4} {'matmul':>10} {'copy':>8} {'from host':>10} {'to host':>8}", style="dim"
    )
    units = f" {'':>6} {'':>4} {'(TFLOP/s)':>10} {'(GB/s)':>8} {'(GB/s)':>10} {'(GB/s)':>8}          {which}"
    out.print(units, style="dim")
    for rank, gpu, *rates in shown:
        cells = " ".join(
            f"{'-' if rate is None else f'{rate:.1f}':>{width}}"
            for rate, width in zip(rates, (10, 8, 10, 8), strict=True)
        )
        out.print(f" {rank:>6} {'' if gpu is None else gpu:>4} {cells}")


def _show_lines(lines: Sequence[str], out: "Console") -> None:
    """A table with a dim heading: how gradients are packed, what a training step consists of."""
    for number, line in enumerate(lines):
        if number == 0:
            out.print()
        out.print(f" {line}", style=None if number else "dim")


def _show_finding(finding: Finding, out: "Console") -> None:
    out.print()
    _show_title(finding, out)
    for line in findings.lines(finding):
        out.print(_laid_out(line, out))


def _laid_out(line: Line, out: "Console") -> str:
    """The line at its indent; on a terminal, prose is broken between words."""
    text = indent(line.text, " " * line.indent)
    if line.to_paste or not out.is_terminal:
        return text
    further = " " * (line.indent + line.hang)
    return fill(text, out.width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


def _show_title(finding: Finding, out: "Console") -> None:
    severity = (f"{finding.severity.value.upper()} {finding.code} ", STYLE[finding.severity])
    _show_sentence(out, severity, (one_line(finding.title), "bold"))


def _show_verdict(report: Report, out: "Console") -> None:
    _show_sentence(out, (one_line(report.summary), VERDICT_STYLE[report.verdict]))


def _show_sentence(out: "Console", *parts: tuple[str, str]) -> None:
    """A sentence in styled parts, broken between words on a terminal."""
    from rich.text import Text

    out.print(Text.assemble(*parts), soft_wrap=not out.is_terminal)
