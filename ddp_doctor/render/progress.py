"""Live progress: one line on a terminal, and nothing elsewhere.

12 of 19  allreduce, 3 s
1.2 of 2.0 GiB read, 640 MB/s, 2 s
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from ddp_doctor.render.screen import is_plain
from ddp_doctor.render.text import amount, one_line

if TYPE_CHECKING:
    from rich.console import Console


def _can_write_over(out: "Console") -> bool:
    """Whether it is a terminal whose cursor may be moved; FORCE_COLOR makes a file look like one."""
    return out.is_terminal and out.file.isatty() and not is_plain()


@contextmanager
def bytes_read(out: "Console", *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Progress on ``out`` while files are read: bytes of how many, where that is known, how fast, and the time."""
    if quiet or not _can_write_over(out):
        yield lambda _read, _total: None
        return
    from rich.live import Live
    from rich.text import Text

    started, done, all_of_it = monotonic(), 0, 0

    def line() -> Text:
        took_s = max(monotonic() - started, 1e-3)
        of = f" of {amount(all_of_it, 'B')}" if all_of_it else ""
        return Text(f"{amount(done, 'B')}{of} read, {amount(done / took_s, 'B/s')}, {took_s:.0f} s", style="dim")

    def tell(read: int, total: int) -> None:
        nonlocal done, all_of_it
        done, all_of_it = read, total

    with Live(get_renderable=line, console=out, transient=True, refresh_per_second=4, redirect_stdout=False):
        yield tell


@contextmanager
def progress(out: "Console", checks: Sequence[str], *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Progress on ``out`` while the block runs: the number among ``checks`` of the one that runs, and the time."""
    if quiet or not _can_write_over(out):
        yield lambda _text: None
        return
    from rich.live import Live
    from rich.text import Text

    started, number, shown = monotonic(), 0, "starting"

    def line() -> Text:
        of = f"{number} of {len(checks)}  " if checks else ""
        return Text(f"{of}{shown}, {monotonic() - started:.0f} s", style="dim")

    live = Live(get_renderable=line, console=out, transient=True, refresh_per_second=4, redirect_stdout=False)

    def tell(text: str) -> None:
        nonlocal number, shown
        number = checks.index(text) + 1 if text in checks else number
        shown = one_line(text)
        live.refresh()

    with live:  # what is said on stderr meanwhile stands above the line
        yield tell
