"""The terminal that reports are printed on, and its colors. It imports no report: `lint` starts without them."""

import os
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from ddp_doctor.model.choices import Severity, Verdict
from ddp_doctor.render.text import plain

if TYPE_CHECKING:
    import rich.console

#: What is printed on; rich is imported when something is.
Console: TypeAlias = "rich.console.Console"
STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
VERDICT_STYLE = {
    Verdict.HEALTHY: "bold green",
    Verdict.DEGRADED: "bold yellow",
    Verdict.UNHEALTHY: "bold red",
    Verdict.UNSURE: "bold yellow",
}


def is_plain() -> bool:
    """Whether text alone may be written: NO_COLOR (no-color.org) comes before FORCE_COLOR; or a terminal that can no
    more. Neither bold nor the lines of progress, which move the cursor, are text.
    """
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def console(stream: TextIO, *, width: int | None = None, is_piped: bool = False) -> Console:
    """A console that colors only terminals, and prints every string as it is but for control characters.

    ``is_piped``: the stream looks like a terminal and is none.
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
