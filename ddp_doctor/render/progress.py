"""Live progress: a spinner line on a terminal, one plain line per check elsewhere, or nothing."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from ddp_doctor.render.text import one_line

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """Shows what is being tested now."""

    def __call__(self, text: str) -> None:
        """Show it."""
        ...


@contextmanager
def progress(out: "Console", *, quiet: bool) -> Iterator[Progress]:
    """Progress on ``out`` while the block runs."""
    if quiet:
        yield lambda _text: None
    elif out.is_terminal:
        from rich.markup import escape

        with out.status("starting", spinner="dots") as status:
            yield lambda text: status.update(escape(one_line(text)))  # a status reads markup
    else:

        def show(text: str) -> None:
            with suppress(OSError):  # a full disk ends no run
                out.print(f"... {one_line(text)}", soft_wrap=True)

        yield show
