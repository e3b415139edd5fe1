"""Live progress: one line on a terminal; elsewhere a line every five minutes.

12 of 19  allreduce, 3 s
1.2 of 2.0 GiB read, 640 MB/s, 2 s
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING

from ddp_doctor.render.screen import Console, is_plain
from ddp_doctor.render.text import amount, one_line

if TYPE_CHECKING:
    from rich.live import Live


def _can_write_over(out: Console) -> bool:
    """Return True for a terminal whose cursor may be moved; FORCE_COLOR makes a file look like one."""
    return out.is_terminal and out.file.isatty() and not is_plain()


#: Seconds between two lines if they cannot be overwritten.
_EVERY_S = 300.0


@contextmanager
def _live(out: Console, line: Callable[[], str]) -> Iterator["Live"]:
    """Redraw ``line`` while the block runs; other output on stderr appears above it."""
    from rich.live import Live
    from rich.text import Text

    def drawn() -> Text:
        return Text(line(), style="dim")

    with Live(get_renderable=drawn, console=out, transient=True, refresh_per_second=4, redirect_stdout=False) as live:
        yield live


@contextmanager
def bytes_read(out: Console, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show progress on ``out`` while files are read: bytes, total if known, rate and time."""
    if quiet or not _can_write_over(out):
        yield lambda _read, _total: None
        return
    started, done, all_of_it = monotonic(), 0, 0

    def line() -> str:
        took_s = max(monotonic() - started, 1e-3)
        of = f" of {amount(all_of_it, 'B')}" if all_of_it else ""
        return f"{amount(done, 'B')}{of} read, {amount(done / took_s, 'B/s')}, {took_s:.0f} s"

    def tell(read: int, total: int) -> None:
        nonlocal done, all_of_it
        done, all_of_it = read, total

    with _live(out, line):
        yield tell


@contextmanager
def progress(out: Console, checks: Sequence[str], *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show progress on ``out`` while the block runs: the number of the current check among ``checks``, and the time."""
    if quiet:
        yield lambda _text: None
        return
    started, number, shown, is_live = monotonic(), 0, "starting", _can_write_over(out)
    told_at = started

    def line() -> str:
        of = f"{number} of {len(checks)}  " if checks else ""
        return f"{of}{shown}, {monotonic() - started:.0f} s"

    def tell(text: str) -> None:
        nonlocal number, shown, told_at
        number = checks.index(text) + 1 if text in checks else number
        shown = one_line(text)
        if live is not None:
            live.refresh()
        elif monotonic() - told_at >= _EVERY_S:
            told_at = monotonic()
            out.print(line(), markup=False, highlight=False, soft_wrap=True)

    with _live(out, line) if is_live else nullcontext() as live:
        yield tell
