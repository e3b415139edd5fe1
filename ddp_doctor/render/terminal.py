"""The report for people, and a line for each kept run.

Findings come first, worst on top; then their basis. The verdict comes last, at the end of the screen.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import fill

from ddp_doctor.features import feature_of
from ddp_doctor.model.choices import CheckStatus, Command, Detail, Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import EnvReport, JobCauseReport, Report
from ddp_doctor.render import checks, findings, heat_map, tables
from ddp_doctor.render.layout import command, folded, width_of
from ddp_doctor.render.screen import STYLE, VERDICT_STYLE, Console
from ddp_doctor.render.text import one_line
from ddp_doctor.render.used_transports import used_table
from ddp_doctor.wording.findings import judges_times, only_a_busy_host

#: Shorter times are only for reading a text.
_SHORTEST_S = 0.05


def show(
    report: Report,
    recording: Recording,
    out: Console,
    saved_as: str | None = None,
    detail: Detail = Detail.SCREEN,
    kept_note: str = "",
) -> None:
    """Print the full report. ``saved_as`` is the path of the kept recording, ``kept_note`` a note on others."""
    parts = _Parts(out)
    feature = feature_of(recording.command)
    for finding in () if feature is not None and feature.is_of_runs else _shown_findings(report, detail):
        parts.begin()
        _show_finding(finding, findings.cause_of(report, finding), out)
    if detail is not Detail.VERDICT:
        _show_story(report, recording, parts, each=detail is Detail.ALL)
        _show_measurements(report, recording, parts, each=detail is Detail.ALL)
    parts.begin()
    if saved_as and detail is not Detail.VERDICT:
        out.print(f"Recording: {saved_as}", style="dim")
        if kept_note:
            out.print(folded(kept_note, parts.width, indent=4), style="dim")
    _show_verdict(report, out)


class _Parts:
    """The parts of a report, with an empty line between two of them."""

    def __init__(self, out: Console) -> None:
        self.out = out
        self.width = width_of(out)
        self._is_first = True

    def begin(self) -> None:
        if not self._is_first:
            self.out.print()
        self._is_first = False

    def show(self, lines: Iterable[str]) -> None:
        """Print these lines as a part, the first one dim; without lines, print nothing."""
        for number, line in enumerate(lines):
            if not number:
                self.begin()
            self.out.print(line, style=None if number else "dim")


def _shown_findings(report: Report, detail: Detail) -> list[Finding]:
    """Return the findings; a busy host only if a time was evaluated or a check timed out."""
    late = any(check.status is CheckStatus.TIMED_OUT for check in report.checks)
    if detail is Detail.ALL or late or any(map(judges_times, report.findings)):
        return list(report.findings)
    return [finding for finding in report.findings if not only_a_busy_host(finding)]


def _show_measurements(report: Report, recording: Recording, parts: _Parts, *, each: bool) -> None:
    measured, width = report.measurements, parts.width
    parts.show(tables.size_lines(measured, width, all_rows=each))
    for of_collective in tables.collectives_tables(measured, all_rows=each or bool(recording.options.collectives)):
        parts.show(tables.lines(of_collective, width))
    parts.show(used_table(recording, width).splitlines())
    parts.show(tables.lines(tables.isolation_table(recording), width))
    maps = [heat for heat in heat_map.heat_maps(report) if len(heat.labels) > 2]
    for heat in maps if each else maps[:1]:
        parts.begin()
        for number, line in enumerate(heat_map.lines(heat, width)):
            parts.out.print(heat_map.styled(line), style=None if number else "dim")
    for table in (tables.gpu_table, tables.bucket_table, tables.step_table, tables.advice_table):
        parts.show(tables.lines(table(measured), width))
    if recording.of_check("baseline") and (each or feature_of(recording.command) is not None):
        from ddp_doctor.render.compared import beside

        parts.show(tables.lines(beside(recording, each=each), width))


def _show_story(report: Report, recording: Recording, parts: _Parts, *, each: bool) -> None:
    """Print what the command read. Few commands need these modules, so each is imported where it is used."""
    if recording.command is Command.TOPOLOGY and any(reading.fact is not None for reading in recording.readings):
        from ddp_doctor.render.topology import report as topology

        parts.begin()
        topology.show(recording, parts.out)
    elif isinstance(report, EnvReport) and any(check.status is not CheckStatus.SKIPPED for check in report.checks):
        from ddp_doctor.render import settings_table

        parts.begin()
        settings_table.show(report, parts.out)
    for lines in _stories(report, recording, parts.width, each=each):
        parts.show(lines)
    is_pasted = recording.command is Command.TOPOLOGY and recording.world is None  # a text without a machine
    feature = feature_of(recording.command)
    has_own_table = feature is not None and feature.tables is not None
    if not has_own_table and (each or not (is_pasted or feature is not None)):
        for number, line in enumerate(checks.lines(report, recording, parts.width, each=each)):
            if not number:
                parts.begin()
            parts.out.print(line)


def _stories(report: Report, recording: Recording, width: int | None, *, each: bool) -> Iterator[Iterable[str]]:
    """Yield the parts of a command that has its own tables."""
    if (feature := feature_of(recording.command)) is not None and feature.story is not None:
        yield from feature.story(report, recording, width, each=each)
    elif feature is not None and feature.tables is not None:
        yield from (table.lines(width) for table in feature.tables(report, recording, each=each))


def show_short(report: Report, out: Console, head: str, saved_as: str | None = None) -> None:
    """Print what a node other than the head shows: titles of errors, the verdict, and where the full report is."""
    out.print()
    for finding in report.findings:
        if finding.severity is Severity.ERROR:
            _show_title(finding, out)
    out.print(f"The full report is on the head node, {one_line(head)}.", style="dim")
    if saved_as:
        out.print(f"Recording: {saved_as}", style="dim")
    _show_verdict(report, out)


def _show_finding(finding: Finding, cause: JobCauseReport | None, out: Console) -> None:
    _show_title(finding, out)
    for line in findings.lines(finding, cause):
        if line.to_paste:
            for text in line.text.split("\n"):
                out.print(command(text, width_of(out), indent=line.indent))
        else:
            out.print(folded(line.text, width_of(out), indent=line.indent, hang=line.hang))


def _show_title(finding: Finding, out: Console) -> None:
    from rich.text import Text

    mark = f"{finding.severity.value.upper()} {finding.code}"
    text = Text(folded(f"{mark} {one_line(finding.title)}", width_of(out)), style="bold")
    text.stylize(STYLE[finding.severity], 0, len(mark))
    out.print(text)


def _show_verdict(report: Report, out: Console) -> None:
    took = f" ({report.duration_s:.1f} s)" if report.duration_s >= _SHORTEST_S else ""
    out.print(folded(f"{one_line(report.summary)}{took}", width_of(out)), style=VERDICT_STYLE[report.verdict])


def show_kept_run(path: Path, report: Report, command: str, out: Console) -> None:
    """Print a kept run: time, command, verdict, and below them the unbroken path of the directory to replay."""
    when = one_line(report.started_at.replace("T", " ").removesuffix("Z"))
    verdict = f"{when} {command:<8} {one_line(report.summary)}"
    out.print(
        fill(verdict, out.width, subsequent_indent="    ") if out.is_terminal else verdict,
        style=VERDICT_STYLE[report.verdict],
    )
    out.print(f"    {path}", style="dim")
