"""The terminal for reports, and its colors. It does not import reports, so `lint` starts faster."""

import os
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from ddp_doctor.model.choices import Severity, Verdict
from ddp_doctor.render.text import plain

if TYPE_CHECKING:
    import rich.console

#: The type of the output; rich is imported only when something is printed.
Console: TypeAlias = "rich.console.Console"
STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
VERDICT_STYLE = {
    Verdict.HEALTHY: "bold green",
    Verdict.DEGRADED: "bold yellow",
    Verdict.UNHEALTHY: "bold red",
    Verdict.UNSURE: "bold yellow",
}


def is_plain() -> bool:
    """Return True if only plain text may be written: NO_COLOR (no-color.org) before FORCE_COLOR, or a dumb terminal.

    Bold text and progress lines, which move the cursor, are not plain text.
    """
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def console(stream: TextIO, *, width: int | None = None, is_piped: bool = False) -> Console:
    """Return a console that colors only terminals and prints strings unchanged except for control characters.

    ``is_piped``: the stream only looks like a terminal.
    """
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(plain(text), **options)

        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 - rich would exit with 1, which is the code of an unhealthy node

    return PlainConsole(
        file=stream,
        force_terminal=False if is_piped else None,
        color_system=None if is_plain() else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        width=width,
    )
