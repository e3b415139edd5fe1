"""Usage errors that click or typer finds, as one sentence in the style of ddp-doctor's own.

Their texts differ between releases, and most of them do not show the value that the user gave.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from ddp_doctor.cli.error_handler import print_to_stderr
from ddp_doctor.model.error_text import expected, quoted, unknown


def report_usage_error(error: Any) -> None:
    """Print a UsageError of click or typer in one sentence, or the help if there are no arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        print_to_stderr(f"ddp-doctor: {_sentence(error, sys.argv[1:])}")


def _sentence(error: Any, argv: Sequence[str]) -> str:
    context = error.ctx
    command = f"ddp-doctor {context.info_name}" if context and context.parent else "ddp-doctor"
    usage = f"run `{command} --help` for usage"
    if hasattr(error, "possibilities"):  # NoSuchOption
        options = [name for parameter in context.command.params for name in parameter.opts] if context else []
        known = [name for name in options if name.startswith("--")]
        return unknown("option", error.option_name, known, usage)
    text = f"{error.message[:1].lower()}{error.message[1:]}".rstrip(".")
    parameter = getattr(error, "param", None)
    if parameter is not None and context is not None:
        name, value = _given(parameter, context, argv)
        if hasattr(error, "param_type"):  # MissingParameter
            return f"missing argument {name}; {usage}"
        return f"invalid {name} {quoted(value)}: {_expected(text, value)}"
    rest = _parsed(context, argv)[1] if context is not None else []
    if rest and text.startswith("no such command"):
        return unknown("command", rest[0], context.command.list_commands(context), usage)
    return f"unexpected argument {quoted(rest[0])}; {usage}" if rest else text


def _parsed(context: Any, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the raw values of the command's options and arguments by name, and the unexpected arguments."""
    own = argv[[*argv].index(context.info_name) + 1 :] if context.info_name in argv else argv
    values, rest, _ = context.command.make_parser(context).parse_args([*own])
    return values, rest


def _given(parameter: Any, context: Any, argv: Sequence[str]) -> tuple[str, str]:
    """Return the name and the value of an option or argument, or of the variable that the value is from."""
    given = _parsed(context, argv)[0].get(parameter.name)
    if isinstance(given, str):
        return _written(parameter), given
    if isinstance(given, list | tuple):
        return _written(parameter), str(given[-1]) if given else ""
    variable = parameter.envvar if isinstance(parameter.envvar, str) else ""
    return (variable, os.environ[variable]) if variable in os.environ else (_written(parameter), "")


def _written(parameter: Any) -> str:
    return str(
        max(parameter.opts, key=len)
        if parameter.param_type_name == "option"
        else (parameter.metavar or parameter.name.upper()).strip("[]")
    )


def _expected(text: str, value: str) -> str:
    """Return what was expected instead of the value, from the text of click or pydantic."""
    _, is_choice, choices = text.partition("is not one of ")
    if is_choice:
        return expected(value, re.findall(r"'([^']*)'", choices))
    text = re.sub(r", unable to parse.*", "", text.removeprefix("value error, "))
    text = re.sub(r"^(path|file|directory) '.*' ", "it ", text)
    text = text.replace("a valid integer", "an integer").replace("a valid number", "a number")
    return re.sub(
        r"input should be( greater than or equal to)?", lambda at: f"expected{' at least' * bool(at[1])}", text
    )
