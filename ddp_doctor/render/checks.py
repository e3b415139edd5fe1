"""The results of the checks, in groups on a screen, or line by line.

ok  node         env_vars, software, nccl, host, interfaces
!!  gpus         DD304
??  p2p          timed out: rank 1 entered send and never left
--  buffers      DD536 makes every step several times longer
--  skipped (no hardware)  rdma, rdma_after
--  skipped (needs an option)  checkpoint, step_time (--level thorough), user_model (--model)
    !! see the finding above   ?? no result   -- skipped (-v shows why)

A healthy run has one line for all skipped checks: 12 checks were skipped; -v lists them
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

from ddp_doctor.checks import checks_of
from ddp_doctor.features import has_model
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import CheckStatus, Severity, Status, Verdict
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import NOT_SELECTED, Recording
from ddp_doctor.model.report import CheckResult, Report
from ddp_doctor.render.layout import folded
from ddp_doctor.render.screen import STYLE
from ddp_doctor.render.text import one_line, plain

if TYPE_CHECKING:
    from rich.text import Text

#: Maximum length; the JSON report has the full reason.
_LONGEST_REASON = 160
#: Less prints as 0.00 s.
_SHORTEST_S = 0.005
_MARKS = {
    CheckStatus.PASSED: "ok",
    CheckStatus.FOUND: "!!",
    CheckStatus.SKIPPED: "--",
    CheckStatus.TIMED_OUT: "??",
    CheckStatus.FAILED: "??",
}
_WITH_RESULT = (CheckStatus.PASSED, CheckStatus.FOUND)
_STYLES = {"ok": "green", "--": "dim", "??": "yellow"}
_LEGEND = {"!!": "see the finding above", "??": "no result", "--": "skipped"}
_OTHERS = "others"
#: The status of every reading if no node has such hardware.
_ABSENT = {Status.ABSENT}
_NO_HARDWARE, _NEEDS_OPTION = "skipped (no hardware)", "skipped (needs an option)"
#: Longer names do not widen the column.
_LONGEST_NAME = 15


class _Line(NamedTuple):
    mark: str
    name: str
    text: str
    style: str


def lines(report: Report, recording: Recording, width: int | None, *, each: bool) -> "Iterator[Text]":
    """Yield all checks, ``each`` on its own line or in groups, and the meaning of the marks."""
    from rich.text import Text

    untold = [check for check in report.checks if not check.reason or check.reason not in report.summary]
    has_more_to_say = any(check.status not in _WITH_RESULT or check.reason for check in untold)
    if not each and recording.command.has_one_subject and not has_more_to_say:
        return
    each |= all(check.status is CheckStatus.SKIPPED for check in report.checks)  # the reason is all there is
    if each:
        shown = [_line(report, same, _words) for same in alike(report.checks)]
    else:
        shown = list(_grouped(report, recording))
    column = max((len(line.name) for line in shown if len(line.name) <= _LONGEST_NAME), default=0)
    for mark, name, text, style in shown:
        padded = f"{name:<{column}} " if len(name) <= column else f"{name}  "
        line = folded(f"{padded}{text}", width and width - 4, hang=column + 1)
        yield Text.assemble((f" {mark} ", style), (plain(line).replace("\n", "\n    "), "dim" if mark == "--" else ""))
    legend = [f"{mark} {_LEGEND[mark]}" for mark in dict.fromkeys(line.mark for line in shown) if mark in _LEGEND]
    if legend:
        why = "" if each or "--" not in {line.mark for line in shown} else " (-v shows why)"
        yield Text(folded(f"{', '.join(legend)}{why}", width, indent=4), style="dim")
    if not each and (skipped := len(_skipped_in_healthy_run(report))):
        counted = (
            "1 check was skipped; -v shows it" if skipped == 1 else f"{skipped} checks were skipped; -v lists them"
        )
        yield Text(folded(counted, width, indent=4), style="dim")


def _skipped_in_healthy_run(report: Report) -> list[CheckResult]:
    """Return the skipped checks, which are shown as one count; empty unless the verdict is healthy."""
    if report.verdict is not Verdict.HEALTHY:
        return []
    return [check for check in report.checks if check.status is CheckStatus.SKIPPED and check.reason != NOT_SELECTED]


def _grouped(report: Report, recording: Recording) -> Iterator[_Line]:
    """Yield the passed checks by group, then the others one by one, then the skipped checks by reason."""
    counted = _skipped_in_healthy_run(report)
    selected = [check for check in report.checks if check.reason != NOT_SELECTED and check not in counted]
    whole = [check for check in selected if check.status is CheckStatus.PASSED]
    checks = checks_of(recording.command, has_model=has_model(recording)) if whole else ()
    groups = {check.id: check.group for check in checks}
    for group in dict.fromkeys((*groups.values(), _OTHERS)):
        ids = [check.id for check in whole if groups.get(check.id, _OTHERS) == group]
        if ids:
            yield _Line("ok", group, one_line(", ".join(ids)), _STYLES["ok"])
    partly = [check for check in whole if check.reason]
    yield from (_Line("--", one_line(check.id), _reason(check), _STYLES["--"]) for check in partly)
    idle = [check for check in selected if check.status is CheckStatus.SKIPPED]
    absent = [check for check in idle if {reading.status for reading in recording.of_check(check.id)} == _ABSENT]
    requested = [check for check in idle if check not in absent and _option(check)]
    in_groups = (*whole, *absent, *requested)
    for same in alike([check for check in selected if check not in in_groups]):
        yield _line(report, same, _short_words)
    if absent:
        yield _Line("--", _NO_HARDWARE, _names(absent), _STYLES["--"])
    if requested:
        by_option = grouped((_option(check), check) for check in requested)
        text = ", ".join(f"{_names(same)} ({option})" for option, same in by_option.items())
        yield _Line("--", _NEEDS_OPTION, text, _STYLES["--"])


def alike(checks: Sequence[CheckResult]) -> list[list[CheckResult]]:
    """Return the checks in order, grouped by reason if they have no result."""

    def cause(check: CheckResult) -> Hashable:
        return check.id if check.status in _WITH_RESULT else (check.status, check.reason)

    return list(grouped((cause(check), check) for check in checks).values())


def _line(report: Report, same: Sequence[CheckResult], words: Callable[[Report, CheckResult], str]) -> _Line:
    mark = _MARKS[same[0].status]
    has_error = any(finding.severity is Severity.ERROR for finding in _findings(report, same[0]))
    worst = Severity.ERROR if has_error else Severity.WARNING
    return _Line(mark, _names(same), words(report, same[0]), _STYLES.get(mark, STYLE[worst]))


def _names(checks: Sequence[CheckResult]) -> str:
    return one_line(", ".join(check.id for check in checks))


def _findings(report: Report, check: CheckResult) -> list[Finding]:
    return [
        finding
        for finding in report.findings
        if finding.severity.at_least(Severity.WARNING)
        and any(evidence.check == check.id for evidence in finding.evidence)
    ]


def _short_words(report: Report, check: CheckResult) -> str:
    if check.status is CheckStatus.FOUND:
        codes = ", ".join(dict.fromkeys(finding.code for finding in _findings(report, check)))
        return f"{codes}{_skipped_elsewhere(check)}"
    if check.status is CheckStatus.SKIPPED:
        return _reason(check)
    return _words(report, check)


def _words(report: Report, check: CheckResult) -> str:
    if check.status is CheckStatus.PASSED:
        took = f" ({check.duration_s:.2f} s)" if check.duration_s >= _SHORTEST_S else ""
        return f"{check.title}{took}{_skipped_elsewhere(check)}"
    if check.status is CheckStatus.FOUND:
        return f"{check.title}: {_short_words(report, check)}"
    return f"{check.status.value.replace('_', ' ')}: {_reason(check)}"


def _skipped_elsewhere(check: CheckResult) -> str:
    """Return why only some of several nodes were tested."""
    return f"; skipped {_reason(check)}" if check.reason else ""


def _reason(check: CheckResult) -> str:
    return shorten(one_line(check.reason or ""), _LONGEST_REASON, placeholder=" ...")


def _option(check: CheckResult) -> str:
    """Return the option that enables the check if the reason names one: "needs two nodes: --nnodes"."""
    reason = check.reason or ""
    return reason[reason.index("--") :] if reason.startswith("needs ") and "--" in reason else ""
