"""The lines below a finding's title: detail, evidence, and fixes with commands to paste."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ddp_doctor.model.choices import Confidence, Domain, Restart
from ddp_doctor.model.finding import Evidence, Finding, Remedy, Setting
from ddp_doctor.model.report import JobCauseReport, LogsReport, Report
from ddp_doctor.remedies.kinds import FOLLOWS
from ddp_doctor.remedies.values_by_host import why_not
from ddp_doctor.render import shell
from ddp_doctor.render.text import amount, one_line
from ddp_doctor.wording.nodes import first_names, name_list
from ddp_doctor.wording.proofs import NO_GAIN, SAID_ALREADY, SLOWER, in_force

#: Maximum number of lines on a screen; rules group equal things, and the JSON report has all.
_MOST_EVIDENCE = 24
#: Maximum number of settings that differ between nodes.
_MOST_VALUES = 8


@dataclass(frozen=True)
class Line:
    """A line at its indent. A line to paste is never broken; other lines go on ``hang`` further in."""

    text: str
    indent: int = 2
    hang: int = 0
    to_paste: bool = False


def lines(finding: Finding, cause: JobCauseReport | None = None) -> Iterator[Line]:
    """Yield all lines of a finding except its title; ``cause`` has the cause of a failed job, if the finding is one."""
    if names := absent(finding):
        yield Line(f"No answer from: {one_line(first_names(names, _MOST_EVIDENCE))}", hang=2)
    if finding.detail:
        yield Line(one_line(finding.detail))
    for text in evidence_lines(finding.evidence):
        yield Line(f"- {one_line(text)}", hang=2)
    for remedy in finding.remedies:
        yield from remedy_lines(remedy)
    if cause is not None:
        yield from job_cause_lines(cause)
    # Without evidence there is nothing to be sure of.
    sure = f"{finding.confidence.value}; " if finding.evidence else ""
    yield Line(f"({sure}more: ddp-doctor explain {finding.code})")


def job_cause_lines(cause: JobCauseReport) -> Iterator[Line]:
    """Yield the next step to prove the cause, its domain, and the effect of a restart."""
    to_read = cause.next_check.startswith("ddp-doctor lint")  # the line of code, which is also shown for proved causes
    if cause.next_check and (to_read or cause.confidence is not Confidence.PROVED):
        yield Line(f"Next step: {one_line(cause.next_check)}", hang=2)
    is_start = cause.domain == "scheduler" and cause.restart != "on the same nodes"  # the job was not stopped
    sentence = f"{'' if is_start else _DOMAINS[cause.domain]} {_RESTARTS[cause.restart]}".strip()
    if sentence and cause.confidence is not Confidence.POSSIBLE:  # both are unknown for a guess
        yield Line(sentence, hang=2)


_DOMAINS: dict[Domain, str] = {
    "code": "The fault is in the job's code.",
    "data": "The fault is in the job's data.",
    "host": "The fault is on a host, or in its container.",
    "gpu": "The fault is in a GPU or its driver.",
    "network": "The fault is in the network.",
    "scheduler": "The scheduler, or a person who controls it, stopped the job.",
    "unknown": "",
}
_RESTARTS: dict[Restart, str] = {
    "no": "If restarted unchanged, the job fails again.",
    "on the same nodes": "If restarted, even on the same nodes, the job may run.",
    "on other nodes": "If restarted on other nodes, the job may run. On the same nodes it will probably fail again.",
    "unknown": "",
}


def cause_of(report: Report, finding: Finding) -> JobCauseReport | None:
    """Return the cause that a report on jobs gives for a finding. Several jobs may have the same fault, in order."""
    causes = [cause for cause in report.causes if cause.name == finding.name] if isinstance(report, LogsReport) else []
    alike = [other for other in report.findings if other.name == finding.name]
    at = alike.index(finding) if len(alike) == len(causes) and finding in alike else 0
    return causes[at] if causes else None


def absent(finding: Finding) -> list[str]:
    """Return the missing nodes that the title does not name."""
    names = [node.node or f"node rank {node.node_rank}" for node in finding.missing]
    return [name for name in names if not re.search(rf"\b{re.escape(name)}\b", finding.title)]


def evidence_lines(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Yield the measurements; repeated lines once, with their number."""
    shown, left = evidence[:_MOST_EVIDENCE], len(evidence) - _MOST_EVIDENCE
    source = ""
    for text, same in groupby(shown, _measured):
        alike = list(same)
        times = f" ({len(alike)} times)" if len(alike) > 1 else ""
        value = alike[0].expected
        expected = f"expected {_amount(alike[0], value)}" if value is not None else ""
        before, source = source, ", ".join(filter(None, (expected, alike[0].expected_from)))
        yield f"{text}{times}{f' ({source})' if source not in ('', before) else ''}"
    if left > 0:
        yield f"and {left} more lines in the JSON report"


def _measured(item: Evidence) -> str:
    return item.text if item.value is None else f"{item.text}: {_amount(item, item.value)}"


def _amount(item: Evidence, value: float) -> str:
    """Format the value, with all digits if fewer make it look like the expected one."""
    text = amount(value, item.unit)
    others = [each for each in (item.value, item.expected) if each is not None and each != value]
    return f"{value!r} {item.unit or ''}".rstrip() if text in [amount(each, item.unit) for each in others] else text


def remedy_lines(remedy: Remedy) -> Iterator[Line]:
    """Yield the fix with its exact lines to paste, its cost and how to undo it."""
    if remedy.proof.status == "disproved":  # nothing to paste: it must not be used
        yield Line(f"Not a fix: {one_line(remedy.summary)}", hang=2)
        yield Line(_proof(remedy), indent=4, hang=2)
        return
    yield Line(f"Fix: {one_line(remedy.summary)}", hang=2)
    yield from _to_paste(remedy.settings)
    for command in remedy.commands:
        yield Line(command, indent=6, to_paste=True)
    if remedy.cost:
        yield Line(f"Cost: {remedy.cost}", indent=4, hang=2)
    if remedy.undo:
        is_command = remedy.undo.startswith(("export ", "unset ", "sudo "))
        yield Line(f"Undo: {remedy.undo}", indent=4, hang=2, to_paste=is_command)
    if remedy.proof.after is not None or (remedy.settings and remedy.proof != FOLLOWS):
        yield Line(_proof(remedy), indent=4, hang=2)


def _proof(remedy: Remedy) -> str:
    """Return ``Proved: NCCL_SOCKET_IFNAME=eth1: 390 MB/s -> 1.18 GB/s``, or why there is no proof."""
    proof, reason = remedy.proof, remedy.proof.reason or ""
    if proof.after is not None:
        words = "Tested, slower" if reason == SLOWER else _TESTED[proof.status]
        beside = f"; {reason.removeprefix(SAID_ALREADY)}" if reason not in ("", NO_GAIN, SLOWER) else ""
        what = f": {in_force(remedy.settings)}" if remedy.settings else ""
        return one_line(f"{words}{what}: {proof.before} -> {proof.after}{beside}")
    return one_line(f"Not tested{f': {reason}' if reason else ''}")


_TESTED = {"proved": "Proved", "disproved": "Tested, no effect", "not_tried": "Tested, not proved"}


def _to_paste(settings: Sequence[Setting]) -> Iterator[Line]:
    """Yield the shell lines, one per value, followed by its nodes if it is not for all."""
    hosts: dict[tuple[str, str | None], list[str]] = {}
    for setting in settings:
        value = None if setting.action == "unset" else setting.value or ""
        of_value = hosts.setdefault((setting.name, value), [])
        if setting.node is not None or setting.node_rank is not None:
            of_value.append(setting.node or f"node rank {setting.node_rank}")
    for (name, value), nodes in list(hosts.items())[:_MOST_VALUES]:
        where = f"   # on {one_line(name_list(nodes))}" if nodes else ""
        if why := why_not(name, value):
            yield Line(f"({one_line(name)} cannot be pasted: {why})", indent=6)
        else:
            yield Line(f"{shell.assignment(name, value)}{where}", indent=6, to_paste=True)
    if (left := len(hosts) - _MOST_VALUES) > 0:
        yield Line(f"and {left} more values; --settings env:FILE writes all of them", indent=6)
