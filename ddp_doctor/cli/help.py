"""The layout of ``--help``: options grouped by task, then examples and exit codes.

Typer's rich panels are not used, because at 60 columns they cut the names of options and variables.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ddp_doctor.features import FEATURES, Heading, load_module
from ddp_doctor.render.screen import is_plain

NODES = "Nodes and ranks"
CHECKS = "Checks"
MODEL = "Your model and data"
COLLECTIVES = "Collectives and mesh"
FAULTS = "Bad nodes and intermittent faults"
INPUT = "Input"
ESTIMATE = "Estimate"
HANGS = "Hangs"
VERDICT = "Verdict"
OUTPUTS = "Output"
_HEADINGS = (
    *("Arguments", INPUT, ESTIMATE, HANGS, NODES, CHECKS, MODEL, COLLECTIVES, FAULTS),
    *(VERDICT, OUTPUTS, "Options"),
)

#: The commands of the core, in the groups and the order of the help. A feature defines its group, and is the last in it
#: unless this table lists it.
_COMMANDS: Mapping[Heading, tuple[str, ...]] = {
    "Before a job": ("run", "fit", "prolog", "topology", "env"),
    "While a job runs": (),
    "After a job": ("logs", "replay"),
    "Clusters": (),
    "Reference": ("explain", "schema", "template", "completion"),
}

#: Exit codes of commands that check machines (JUDGED), ended jobs, models, traces and running jobs, and of the others.
JUDGED = "Exit codes: 0 healthy or degraded, 1 unhealthy, 2 usage error, 3 unsure, 130 interrupted."
ENDED = (
    "Exit codes: 0 no failure, 1 cause found, 2 usage error or no readable input, 3 cause not proven or job end"
    " unknown,"
    " 130 interrupted."
)
LIVE = "Exit codes: 0 making progress, 1 stuck, 2 usage error or no job found, 3 unsure, 130 interrupted."
TOLD = "Exit codes: 0 done, 2 usage error, 3 internal error."


#: The options in --help of commands whose full help does not fit on a screen. --help-all shows all options.
_OF_REPORTS = ("--ignore", "--verbose", "--json", "--html")
COMMON = {
    "run": (
        *("--hosts", "--nproc-per-node", "--level", "--only", "--budget", "--model", "--isolate", "--require-gpus"),
        *_OF_REPORTS,
    ),
    "prolog": ("--require-gpus", "--unsure", "--skip", "--prometheus", *_OF_REPORTS),
    "env": ("--from", "--settings", "--fail-on", *_OF_REPORTS),
    "replay": ("--last", "--settings", "--markdown", "--redact", *_OF_REPORTS),
} | {name: (*row.common, *_OF_REPORTS) for name, row in FEATURES.items() if row.common}
_ALL = "ddp_doctor.help_all"
#: The type of an argument and the range of a number, as click writes them.
_TYPE = re.compile(r" <[\w\[\]]+>$")
_RANGE = re.compile(r"; x[<>]=[\d.]+(?=\])|  \[x[<>]=[\d.]+\]")


def epilog(*examples: str, exits: str = JUDGED) -> str:
    """Return the text below the options of a command: examples and exit codes."""
    lines = "\n".join(f"  {example}" for example in examples)
    return f"Examples:\n{lines}\n\n{exits}"


def headed(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the arguments and options of a command with their help, by heading."""
    rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in _HEADINGS}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
        if record is not None:
            name, text = _TYPE.sub("", record[0]), _RANGE.sub("", record[1])
            rows[getattr(parameter, "rich_help_panel", None) or usual].append((name, text))
    return {heading: records for heading, records in rows.items() if records}


def _common(sections: dict[str, list[tuple[str, str]]], shown: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Return the arguments, and in one list the options that are ``shown``."""
    records = [record for heading, records in sections.items() if heading != "Arguments" for record in records]
    always = sections["Options"]
    options = [record for record in records if record in always or {*re.split("[ ,]+", record[0])} & {*shown}]
    arguments = {"Arguments": sections["Arguments"]} if "Arguments" in sections else {}
    return {**arguments, "Common options": options}


def help_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with all options and exit."""
    if wanted:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


def has_short_help(command: str) -> bool:
    """Return True if the help of the command omits options that --help-all shows."""
    return command in COMMON


def summary(command: Any) -> str:
    """Return the summary of a command on one line."""
    return " ".join((command.help or "").split())


class _WithEpilog:
    """The examples and exit codes below the options of a command, or of the group."""

    epilog: str | None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        """Write the text unchanged except for the width of its paragraphs."""
        for paragraph in (self.epilog or "").split("\n\n"):
            heading, _, lines = paragraph.partition("\n")
            formatter.write_paragraph()
            if lines:
                formatter.write(f"{_styled(heading, bold=True)}\n{lines}\n")
            else:
                formatter.write_text(heading)


class Command(_WithEpilog, TyperCommand):
    """A command with its options under headings."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments of the usage line as declared; some releases of typer add brackets and dots."""
        arguments = (parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "argument")
        return ["[OPTIONS]", *(argument.metavar or "" for argument in arguments)]

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - click's signature
        """Return the full summary, which shells show next to the name."""
        return summary(self)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options below the help text: the common ones, or all with --help-all."""
        sections, shown = headed(self, ctx), COMMON.get(self.name or "")
        _write(formatter, sections if shown is None or _ALL in ctx.meta else _common(sections, shown))


class Commands(_WithEpilog, TyperGroup):
    """The group of commands."""

    def invoke(self, ctx: Any) -> Any:  # click's class, or typer's own
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:  # some releases of typer put a word of pydantic's before the message
            error.message = error.message.removeprefix("Value error, ")
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with their summaries, and the options of the group."""
        commands: dict[str, list[tuple[str, str]]] = {
            heading: [(name, self._summary(name)) for name in _names(heading)] for heading in _COMMANDS
        }
        _write(formatter, {**commands, **headed(self, ctx)})

    def _summary(self, name: str) -> str:
        return FEATURES[name].summary if name in FEATURES else summary(self.commands[name])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if it is unknown. A feature is imported when its command is requested."""
        if cmd_name in FEATURES and cmd_name not in self.commands:
            from ddp_doctor.cli.error_handler import error_handler

            with error_handler():
                self.commands[cmd_name] = typer.main.get_command(load_module(cmd_name, ".cli").app)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help."""
        return [name for heading in _COMMANDS for name in _names(heading)]


def _names(heading: Heading) -> list[str]:
    of_features = (name for name, row in FEATURES.items() if row.heading == heading)
    return [*dict.fromkeys((*_COMMANDS[heading], *of_features))]


def _write(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    """Write the sections with one left column; a longer name gets its own line."""
    widest = min(30, formatter.width * 2 // 5)
    names = [name for records in sections.values() for name, _ in records]
    left = max((len(name) for name in names if len(name) <= widest), default=widest)
    for heading, records in sections.items():
        with formatter.section(_styled(heading, bold=True)):
            formatter.write_dl([(_styled(name.ljust(left), fg="cyan"), text) for name, text in records], col_max=left)


def _styled(text: str, **style: Any) -> str:
    return text if is_plain() else typer.style(text, **style)
