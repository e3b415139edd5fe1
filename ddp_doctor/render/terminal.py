"""The report for people, and a line on each run that was kept.

The verdict comes last, because that stays on the screen; findings begin with the worst.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill

from ddp_doctor.model.choices import CheckStatus, Command, Detail, Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import AttachReport, FitReport, JobCauseReport, LogsReport, Report, TraceReport
from ddp_doctor.render import checks, findings, heat_map, tables
from ddp_doctor.render.layout import command, folded, width_of
from ddp_doctor.render.screen import STYLE, VERDICT_STYLE, Console
from ddp_doctor.render.text import one_line
from ddp_doctor.render.used_transports import used_table
from ddp_doctor.wording.findings import judges_times, only_a_busy_host

#: Less is the time of reading a text.
_SHORTEST_S = 0.05


def show(
    report: Report, recording: Recording, out: Console, saved_as: str | None = None, detail: Detail = Detail.SCREEN
) -> None:
    """Print the whole report."""
    width, each = width_of(out), detail is Detail.ALL
    if recording.command is Command.FLEET:
        _show_fleet(report, out, detail)
        return
    if detail is not Detail.VERDICT:
        _show_story(report, recording, out, each=each)
        _show_table(tables.size_lines(report.measurements, width, all_rows=each), out)
        in_full = each or bool(recording.options.collectives)
        for of_collective in tables.collectives_tables(report.measurements, all_rows=in_full):
            _show_table(tables.lines(of_collective, width), out)
        _show_table(used_table(recording, width).splitlines(), out)
        _show_table(tables.lines(tables.isolation_table(recording), width), out)
        _show_heat_maps(report, out, each=each)
        for table in (tables.gpu_table, tables.bucket_table, tables.step_table, tables.advice_table):
            _show_table(tables.lines(table(report.measurements), width), out)
        if recording.of_check("baseline") and (each or recording.command is Command.COMPARE):
            from ddp_doctor.render.fleet import beside

            _show_table(tables.lines(beside(recording, each=each), width), out)
    # A busy host is worth a look only where a time was judged, or a check did not end in time.
    late = any(check.status is CheckStatus.TIMED_OUT for check in report.checks)
    all_of_them = each or late or any(map(judges_times, report.findings))
    shown = [finding for finding in report.findings if all_of_them or not only_a_busy_host(finding)]
    for number, finding in enumerate(shown):
        if number or detail is not Detail.VERDICT:
            out.print()
        _show_finding(finding, findings.cause_of(report, finding), out)
    if report.findings or detail is not Detail.VERDICT:
        out.print()
    if saved_as and detail is not Detail.VERDICT:
        out.print(f"Recording: {saved_as}", style="dim")
    _show_verdict(report, out)


def _show_heat_maps(report: Report, out: Console, *, each: bool) -> None:
    """The first grid, or each, of three ends or more."""
    maps = [heat for heat in heat_map.heat_maps(report) if len(heat.labels) > 2]
    for heat in maps if each else maps[:1]:
        out.print()
        for number, line in enumerate(heat_map.lines(heat, width_of(out))):
            out.print(heat_map.styled(line), style=None if number else "dim")


def _show_story(report: Report, recording: Recording, out: Console, *, each: bool) -> None:
    width = width_of(out)
    is_pasted = recording.command is Command.TOPOLOGY and recording.world is None  # so it is of no machine
    if isinstance(report, AttachReport):
        from ddp_doctor.render import live_story  # no run needs its views, nor those of job_story
        from ddp_doctor.views.live_jobs import live_jobs, unreached

        for number, job in enumerate(live_jobs(recording)):
            if number:
                out.print()
            _show_lines(live_story.lines(job, report, width, each=each), out)
        for host, why in unreached(recording).items():
            out.print(folded(f"{host} could not be read: {one_line(why)}", width, hang=2))
    elif isinstance(report, TraceReport):
        from ddp_doctor.render import trace_table

        for number, table in enumerate(trace_table.tables(report, each=each)):
            if number:
                out.print()
            _show_lines(table.lines(width), out)
    elif isinstance(report, FitReport):
        from ddp_doctor.render import fit_table

        for table in fit_table.tables(report, recording):
            _show_lines(table.lines(width), out)
    elif isinstance(report, LogsReport):
        from ddp_doctor.render import job_story

        _show_lines(job_story.lines(report, recording, width, each=each), out)
    elif each or not (is_pasted or recording.command is Command.COMPARE):  # whose one check is the verdict
        checks.show(report, recording, out, each=each)


def _show_fleet(report: Report, out: Console, detail: Detail) -> None:
    """The tables; a finding in full is shown by the run that found it."""
    from ddp_doctor.model.fleet import FleetReport  # neither has to be there for a prolog
    from ddp_doctor.render.fleet import lines

    if detail is not Detail.VERDICT and isinstance(report, FleetReport):
        for line in lines(report, width_of(out), each=detail is Detail.ALL):
            out.print(line)
        out.print()
    _show_verdict(report, out)


def show_short(report: Report, out: Console, head: str, saved_as: str | None = None) -> None:
    """What a node other than the head shows: the titles of errors, the verdict, and where the full report is."""
    out.print()
    for finding in report.findings:
        if finding.severity is Severity.ERROR:
            _show_title(finding, out)
    out.print(f"The full report is the head's, {one_line(head)}.", style="dim")
    if saved_as:
        out.print(f"Recording: {saved_as}", style="dim")
    _show_verdict(report, out)


def _show_table(lines: Sequence[str], out: Console) -> None:
    if lines:
        out.print()
    _show_lines(lines, out)


def _show_lines(lines: Iterable[str], out: Console) -> None:
    for number, line in enumerate(lines):
        out.print(line, style=None if number else "dim")


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
    """When it ran, which command, its verdict, and below it the folder to replay, whose path is never broken."""
    when = one_line(report.started_at.replace("T", " ").removesuffix("Z"))
    verdict = f"{when} {command:<8} {one_line(report.summary)}"
    out.print(
        fill(verdict, out.width, subsequent_indent="    ") if out.is_terminal else verdict,
        style=VERDICT_STYLE[report.verdict],
    )
    out.print(f"    {path}", style="dim")
