"""The table of ``ddp-doctor env``: what is set, to what, by what, and what that means.

variable           value  default  from
NCCL_DEBUG         INFO   unset    environment, set in bash (process 4711)
    How much NCCL writes to its log.
    overrules /etc/nccl.conf:3, which says WARN
"""

import re
from collections.abc import Iterator

from ddp_doctor.model.report import EnvReport, SettingInForce
from ddp_doctor.render.layout import Table, folded, width_of
from ddp_doctor.render.screen import Console
from ddp_doctor.render.text import one_line
from ddp_doctor.settings.releases import NEWEST_TORCH, RELEASES
from ddp_doctor.settings.table import variables

#: A longer value is cut; the JSON has it whole.
_LONGEST = 40
#: What no release reads has no default.
_NOBODYS = ("unknown", "read by nothing")
_TITLES = ("variable", "value", "default", "from")

_STATUS = {
    "not yet": "{reader} does not read it yet",
    "no longer": "{reader} reads it no longer",
    "renamed": "{reader} reads it no longer: it has another name now",
    "deprecated": "is deprecated",
    "read by nothing": "is read by nothing",
    "unknown": f"is not among the variables of {RELEASES}",
}


def show(report: EnvReport, out: Console) -> None:
    """Print the table; nothing where nothing could be read."""
    if not report.checks or all(check.status.value == "skipped" for check in report.checks):
        return
    if not report.settings:
        out.print("None of the variables that matter to NCCL, torch, gloo and torchrun is set.")
        return
    width = width_of(out)
    out.print(folded(f"Defaults and meanings are those of {versions(report)}.", width), style="dim")
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
    """The releases of which defaults and meanings are told."""
    if report.rocm:
        return (
            f"{RELEASES}, and torch here is built for ROCm {report.rocm}: AMD's RCCL reads NCCL_* and RCCL_*, which"
            " are not judged, for the table is of NVIDIA's NCCL and was not checked against RCCL"
        )
    if report.nccl:
        return f"NCCL {report.nccl}, which torch would load here, and of {NEWEST_TORCH}"
    return f"{RELEASES}, for it is not known which NCCL a job would load"


def _cut(text: str) -> str:
    text = one_line(text)
    if len(text) <= _LONGEST:
        return text
    ends = [found.end() for found in re.finditer(r"[\s,;:/]", text[: _LONGEST - 3])]  # between words
    return f"{text[: ends[-1] if ends else _LONGEST - 3]}..."


def further(row: SettingInForce, report: EnvReport) -> Iterator[str]:
    """What the variable does, whether it is read, and what it overrules."""
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
        yield f"overrules {one_line(overruled.source)}, which {says}"
