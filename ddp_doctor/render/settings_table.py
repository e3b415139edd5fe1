"""The table of ``ddp-doctor env``: each setting, its value, its source and its meaning.

variable           value  default  from
NCCL_DEBUG         INFO   unset    environment, set in bash (process 4711)
    How much NCCL writes to its log.
    overrides /etc/nccl.conf:3, which says WARN
"""

import re
from collections.abc import Iterator

from ddp_doctor.model.report import EnvReport, SettingInForce
from ddp_doctor.render.layout import Table, folded, width_of
from ddp_doctor.render.screen import Console
from ddp_doctor.render.text import one_line
from ddp_doctor.settings.releases import NEWEST_TORCH, RELEASES
from ddp_doctor.settings.table import variables

#: Maximum length of a value; the JSON has the full value.
_LONGEST = 40
#: Variables that no release reads have no default.
_NOBODYS = ("unknown", "read by nothing")
_TITLES = ("variable", "value", "default", "from")

_STATUS = {
    "not yet": "{reader} does not read it yet",
    "no longer": "{reader} no longer reads it",
    "renamed": "{reader} no longer reads it; it was renamed",
    "deprecated": "is deprecated",
    "read by nothing": "is never read",
    "unknown": f"is not among the variables of {RELEASES}",
}


#: More lines are only counted.
_MOST_UNREAD = 10


def show(report: EnvReport, out: Console) -> None:
    """Print the table, unless nothing could be read."""
    if not report.checks or all(check.status.value == "skipped" for check in report.checks):
        return
    width = width_of(out)
    if report.settings:
        _show_table(report, out, width)
    else:
        out.print("No relevant variable of NCCL, torch, gloo or torchrun is set.")
    for line in report.unread_lines[:_MOST_UNREAD]:
        place = f"{line.file} line {line.line}".lstrip()
        text = f"Not read: {place}: {one_line(line.text)} ({line.reason})"
        out.print(folded(text, width, hang=2), style="yellow" if line.is_launch else "dim")
    if len(report.unread_lines) > _MOST_UNREAD:
        out.print(f"Not read: {len(report.unread_lines) - _MOST_UNREAD} more lines", style="dim")


def _show_table(report: EnvReport, out: Console, width: int | None) -> None:
    out.print(folded(f"Defaults and meanings apply to {versions(report)}.", width), style="dim")
    cells = []
    for row in report.settings:
        value = "(kept back)" if row.value is None else _cut(row.value)
        default = "-" if row.status in _NOBODYS else _cut(row.default or "unset")
        source = f"{row.source}, {row.since}" if row.since else row.source
        cells.append((_cut(row.name), value, default, one_line(source)))
    titles, rows = Table(_TITLES, cells).parts(width)
    for line in titles:
        out.print(line, style="dim")
    for row, text in zip(report.settings, rows, strict=True):
        out.print(text)
        for sentence in further(row, report):
            out.print(folded(sentence, width, indent=5, hang=2), style="dim")


def versions(report: EnvReport) -> str:
    """Return the releases that the defaults and meanings apply to."""
    if report.rocm:
        return (
            f"{RELEASES}. Torch here is built for ROCm {report.rocm}: AMD's RCCL reads NCCL_* and RCCL_*, which are"
            " not checked because the table is for NVIDIA's NCCL"
        )
    if report.nccl:
        return f"NCCL {report.nccl}, which torch would load, and {NEWEST_TORCH}"
    return f"{RELEASES}, because it is unknown which NCCL a job would load"


def _cut(text: str) -> str:
    text = one_line(text)
    if len(text) <= _LONGEST:
        return text
    ends = [found.end() for found in re.finditer(r"[\s,;:/]", text[: _LONGEST - 3])]  # between words
    return f"{text[: ends[-1] if ends else _LONGEST - 3]}..."


def further(row: SettingInForce, report: EnvReport) -> Iterator[str]:
    """Yield what the variable does, whether it is read, and what it overrides."""
    if row.meaning:
        yield one_line(row.meaning)
    if row.status in _STATUS:
        known = variables().get(row.name)
        name, version = ("NCCL", report.nccl) if known is None or known.owner == "nccl" else ("torch", report.torch)
        yield _STATUS[row.status].format(reader=f"{name} {version}" if version else f"the newest {name}")
    if row.note:
        yield one_line(row.note)
    for overruled in row.overrides:
        says = "is kept back" if overruled.value is None else f"says {_cut(overruled.value) or 'nothing'}"
        yield f"overrides {one_line(overruled.source)}, which {says}"
