"""The commands that print reference texts; each imports its code when it is called."""

import shutil
from typing import Annotated

import typer

from ddp_doctor.cli import complete
from ddp_doctor.cli.help import TOLD
from ddp_doctor.cli.options import NodeGpusOption, command


@command(
    "ddp-doctor explain",
    "ddp-doctor explain DD401",
    "ddp-doctor explain p2p",
    "ddp-doctor explain exitcode: -9",
    "ddp-doctor explain DD4",
    "ddp-doctor explain NCCL_IB_DISABLE",
    'ddp-doctor explain "Watchdog caught collective operation timeout"',
    exits=TOLD,
    ignore_unknown_options=True,  # -9 is a way to write a signal
)
def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE|VARIABLE|TEXT]...",
            help="Rule code, code prefix, rule name, check, variable, error message, signal, exit code, Xid, term or"
            " phrase. [default: list all rules]",
            autocompletion=complete.words_to_explain,
        ),
    ] = None,
) -> None:
    """Explain a rule, check, variable, error or term, or list all."""
    from ddp_doctor.cli.explain import explain

    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    typer.echo(explain(" ".join(words or ()), width), nl=False)


@command("ddp-doctor schema", "ddp-doctor schema report > report.schema.json", exits=TOLD)
def schema(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Schema to print. [default: list the schemas]",
            autocompletion=complete.names_of_schemas,
        ),
    ] = None,
) -> None:
    """Print the JSON schema of a report, plan, baseline or recording."""
    from ddp_doctor.cli import schemas

    typer.echo(schemas.text(name), nl=False)


@command(
    "ddp-doctor template slurm-prolog",
    "ddp-doctor template prometheus-rules",
    "ddp-doctor template profile",
    exits=TOLD,
)
def template(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Template to print. [default: list the templates]",
            autocompletion=complete.names_of_templates,
        ),
    ] = None,
    require_gpus: NodeGpusOption = None,
) -> None:
    """Print a template for SLURM, Prometheus, Grafana or profiling."""
    from ddp_doctor.cli import commands

    typer.echo(commands.template(name, require_gpus), nl=False)


@command(
    'eval "$(ddp-doctor completion bash)"',
    'eval "$(ddp-doctor completion zsh)"',
    "ddp-doctor completion fish | source",
    exits=TOLD,
)
def completion(
    shell: Annotated[
        str | None, typer.Argument(metavar="[SHELL]", help="Shell: bash, zsh or fish. [default: the shell in $SHELL]")
    ] = None,
) -> None:
    """Print the completion script for bash, zsh or fish."""
    typer.echo(complete.script(shell))
