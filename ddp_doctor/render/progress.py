"""Live progress: one line on a terminal, and nothing elsewhere.

12 of 19  allreduce, 3 s
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from ddp_doctor.render.text import one_line

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress(out: "Console", checks: Sequence[str], *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Progress on ``out`` while the block runs: the number among ``checks`` of the one that runs, and the time."""
    if quiet or not (out.is_terminal and out.file.isatty()):  # FORCE_COLOR makes a file look like one
        yield lambda _text: None
        return
    from rich.live import Live
    from rich.text import Text

    started, number, shown = monotonic(), 0, "starting"

    def line() -> Text:
        return Text(f"{number} of {len(checks)}  {shown}, {monotonic() - started:.0f} s", style="dim")

    live = Live(get_renderable=line, console=out, transient=True, refresh_per_second=4, redirect_stdout=False)

    def tell(text: str) -> None:
        nonlocal number, shown
        number = checks.index(text) + 1 if text in checks else number
        shown = one_line(text)
        live.refresh()

    with live:  # what is said on stderr meanwhile stands above the line
        yield tell
