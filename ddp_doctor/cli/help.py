"""How ``--help`` is laid out: options under a heading for what they are about, then examples and the exit codes.

Typer's panels of rich are not used: at 60 columns they cut the names of options and variables.
"""

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ddp_doctor.render.screen import is_plain

WHERE = "Where"
WHAT = "What is looked at"
TIME = "How long"
VERDICT = "Verdict"
OUTPUTS = "Outputs"
_HEADINGS = ("Arguments", WHERE, WHAT, TIME, VERDICT, OUTPUTS, "Options")

#: The commands by the moment at which they are called for.
_MOMENTS = {
    "Before a job": ("run", "fit", "prolog", "topology", "env", "lint"),
    "While it runs": ("attach", "watch"),
    "After it": ("logs", "trace", "replay"),
    "For clusters": ("fleet", "compare"),
    "Reference": ("explain", "schema", "template", "completion"),
}

#: What commands exit with: those that judge a machine, a job that has ended or one that runs, and all others.
JUDGED = "Exit codes: 0 healthy or degraded, 1 unhealthy, 2 wrong use, 3 unsure, 130 interrupted."
ENDED = (
    "Exit codes: 0 there is no failure in it, 1 a cause was named, 2 wrong use or nothing could be read, 3 it failed"
    " and the cause is not proven, or nothing shows how it ended, 130 interrupted."
)
FITS = (
    "Exit codes: 0 something fits, 1 nothing does, or not the --strategy asked for, 2 wrong use or a model that cannot"
    " be used, 3 no memory is known or something is not in the estimates, 130 interrupted."
)
TRACED = (
    "Exit codes: 0 no rank and no setting costs over 10 % of the step, 1 a finding at or above --fail-on, 2 wrong use"
    " or no trace, 3 unsure, 130 interrupted."
)
LIVE = "Exit codes: 0 it gets on, 1 it is stuck, 2 wrong use or nothing to look at, 3 cannot tell, 130 interrupted."
TOLD = "Exit codes: 0 done, 2 wrong use, 3 the doctor failed itself."


def epilog(*examples: str, exits: str = JUDGED) -> str:
    """What stands below the options of a command: lines to type, and what it exits with."""
    lines = "\n".join(f"  {example}" for example in examples)
    return f"Examples:\n{lines}\n\n{exits}"


def headed(command: Any, context: Any) -> list[tuple[str, list[tuple[str, str]]]]:
    """The arguments and options of a command with their help, below their headings; those without one come last."""
    rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in _HEADINGS}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
        if record is not None:
            rows[getattr(parameter, "rich_help_panel", None) or usual].append(record)
    return [(heading, records) for heading, records in rows.items() if records]


def summary(command: Any) -> str:
    """What a command does, whole."""
    return " ".join((command.help or "").split())


class _WithEpilog:
    """What commands and their group have below the options."""

    epilog: str | None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        """Write it as it stands, but for the width of paragraphs."""
        for paragraph in (self.epilog or "").split("\n\n"):
            heading, _, lines = paragraph.partition("\n")
            formatter.write_paragraph()
            if lines:
                formatter.write(f"{_styled(heading, bold=True)}\n{lines}\n")
            else:
                formatter.write_text(heading)


class Command(_WithEpilog, TyperCommand):
    """A command with its options under headings."""

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - click's signature
        """The summary, which shells show beside the name: never cut."""
        return summary(self)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write them below the help text."""
        _write(formatter, headed(self, ctx))


class Commands(_WithEpilog, TyperGroup):
    """The commands, whose usage errors are sentences: some releases of typer put a word of pydantic's before them."""

    def invoke(self, ctx: Any) -> Any:  # click's class, or typer's own
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with all of its summary, and the few options."""
        moments = [
            (moment, [(name, summary(self.commands[name])) for name in names]) for moment, names in _MOMENTS.items()
        ]
        _write(formatter, [*moments, *headed(self, ctx)])

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Their names in the order of the help."""
        return [name for names in _MOMENTS.values() for name in names]


def _write(formatter: Any, sections: Sequence[tuple[str, list[tuple[str, str]]]]) -> None:
    """The sections with one left column, and a longer name on a line of its own."""
    widest = min(30, formatter.width * 2 // 5)
    names = [name for _, records in sections for name, _ in records]
    left = max((len(name) for name in names if len(name) <= widest), default=widest)
    for heading, records in sections:
        with formatter.section(_styled(heading, bold=True)):
            formatter.write_dl([(_styled(name.ljust(left), fg="cyan"), text) for name, text in records], col_max=left)


def _styled(text: str, **style: Any) -> str:
    return text if is_plain() else typer.style(text, **style)
