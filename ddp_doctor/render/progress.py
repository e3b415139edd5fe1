"""Live progress: a spinner line on a terminal, one plain line per check elsewhere, or nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """Told what is being tested now."""

    def __call__(self, text: str) -> None:
        """Show it."""
        ...


@contextmanager
def progress(out: "Console", *, quiet: bool) -> Iterator[Progress]:
    """Progress on ``out`` while the block runs."""
    if quiet:
        yield lambda _text: None
    elif out.is_terminal:
        with out.status("starting", spinner="dots") as status:
            yield lambda text: status.update(text)  # noqa: PLW0108 - update takes more
    else:
        yield lambda text: out.print(f"... {text}", soft_wrap=True)
