"""One run of those that were kept: when, which command, the verdict, and below it the folder to replay."""

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from ddp_doctor.model.report import Report
from ddp_doctor.render.screen import VERDICT_STYLE
from ddp_doctor.render.text import one_line

if TYPE_CHECKING:
    from rich.console import Console


def show(path: Path, report: Report, command: str, out: "Console") -> None:
    """Print it; the path is never broken."""
    when = one_line(report.started_at.replace("T", " ").removesuffix("Z"))
    verdict = f"{when} {command:<8} {one_line(report.summary)}"
    out.print(
        fill(verdict, out.width, subsequent_indent="    ") if out.is_terminal else verdict,
        style=VERDICT_STYLE[report.verdict],
    )
    out.print(f"    {path}", style="dim")
