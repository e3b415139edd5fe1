"""The manual page, docs/reference/ddp-doctor.1, from the same commands and options as ``--help``.

The wheel puts it in share/man/man1, where ``man ddp-doctor`` finds it beside the program.
"""

from collections.abc import Iterator
from typing import Any

from ddp_doctor.cli.help import headed, summary
from ddp_doctor.cli.main import app
from ddp_doctor.model.choices import ExitCode

#: Lines of roff that begin so are requests.
_CONTROL = (".", "'")


def man_page(exit_codes: dict[ExitCode, str]) -> str:
    """The whole page; ``exit_codes`` says in Markdown what each promises."""
    from typer import Context
    from typer.main import get_command

    group: Any = get_command(app)
    settings = group.context_settings
    lines = [
        '.\\" Written by `make docs`; edit the code instead.',
        ".TH DDP\\-DOCTOR 1",
        ".nh",  # no word is divided
        ".SH NAME",
        "ddp\\-doctor \\- say whether a PyTorch DDP job will start, be right and be fast",
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
    for name, command in group.commands.items():
        lines += [f".SS ddp\\-doctor {name}", _text(summary(command))]
        lines += _options(command, Context(command, **settings))
        lines += [".PP", "Examples:", ".PP", ".nf", ".RS", *_examples(command.epilog), ".RE", ".fi"]
    lines.append(".SH EXIT STATUS")
    for code, promise in exit_codes.items():
        lines += [".TP", f".B {code.value}", _text(promise)]
    lines += [
        ".SH FILES",
        ".TP",
        ".I ~/.local/state/ddp\\-doctor/runs",
        _text("The recordings of the newest twenty runs; below $XDG_STATE_HOME where that is set."),
    ]
    return "\n".join(lines) + "\n"


def _options(command: Any, context: Any) -> Iterator[str]:
    for heading, records in headed(command, context):
        yield from (".PP", f".I {_text(heading)}")
        for name, said in records:
            yield from (".TP", f".B {_text(name)}", _text(said))


def _examples(epilog: str) -> Iterator[str]:
    return (_text(line.strip()) for line in epilog.splitlines() if line.startswith("  "))


def _text(words: str) -> str:
    """Words in which roff finds nothing of its own."""
    text = words.replace("`", "").replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith(_CONTROL) else text
