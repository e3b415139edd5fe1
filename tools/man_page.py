"""The manual page, from the same commands and options as ``--help``. ``make docs`` writes it to build/ddp-doctor.1."""

from collections.abc import Iterator
from typing import Any

from ddp_doctor.cli.help import headed, summary
from ddp_doctor.cli.main import app
from ddp_doctor.model.choices import ExitCode

#: Lines of roff that start with these are requests.
_CONTROL = (".", "'")
_EXIT_CODES = {
    ExitCode.HEALTHY: "Healthy, or degraded without --fail-on warning.",
    ExitCode.UNHEALTHY: "Unhealthy, or degraded with --fail-on warning.",
    ExitCode.USAGE: "Usage error, or an output could not be written. stderr names the error.",
    ExitCode.UNSURE: "Unsure: too little could be tested, or ddp-doctor itself failed.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C, SIGTERM or SIGHUP.",
}


def man_page() -> str:
    """Return the page in the language of man(7)."""
    from typer import Context
    from typer.main import get_command

    group: Any = get_command(app)
    settings = group.context_settings
    lines = [
        '.\\" Written by `make docs`; edit the code instead.',
        ".TH DDP\\-DOCTOR 1",
        ".nh",  # no word is divided
        ".SH NAME",
        "ddp\\-doctor \\- test the nodes of a PyTorch distributed job, and find out why a job hangs, fails or is slow",
        ".SH SYNOPSIS",
        ".B ddp\\-doctor",
        ".I COMMAND",
        "[OPTIONS]",
        ".SH DESCRIPTION",
        _text(summary(group)),
        ".SH OPTIONS",
        *_options(group, Context(group, **settings)),
        ".SH COMMANDS",
    ]
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        lines += [f".SS ddp\\-doctor {name}", _text(summary(command))]
        lines += _options(command, Context(command, **settings))
        lines += [".PP", "Examples:", ".PP", ".nf", ".RS", *_examples(command.epilog), ".RE", ".fi"]
    lines.append(".SH EXIT STATUS")
    for code, meaning in _EXIT_CODES.items():
        lines += [".TP", f".B {code.value}", _text(meaning)]
    lines += [
        ".SH FILES",
        ".TP",
        ".I ~/.local/state/ddp\\-doctor/runs",
        _text("The recordings of the newest twenty runs; below $XDG_STATE_HOME where that is set."),
    ]
    return "\n".join(lines) + "\n"


def _options(command: Any, context: Any) -> Iterator[str]:
    for heading, records in headed(command, context).items():
        yield from (".PP", f".I {_text(heading)}")
        for name, said in records:
            yield from (".TP", f".B {_text(name)}", _text(said))


def _examples(epilog: str) -> Iterator[str]:
    return (_text(line.strip()) for line in epilog.splitlines() if line.startswith("  "))


def _text(words: str) -> str:
    """Return text without anything that roff interprets."""
    text = words.replace("`", "").replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith(_CONTROL) else text
