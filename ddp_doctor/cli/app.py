"""The command line, to which before_a_job, while_it_runs, afterwards and reference add their commands."""

from typing import Annotated

import typer

from ddp_doctor import __version__
from ddp_doctor.cli.help import Commands, epilog

app = typer.Typer(
    name="ddp-doctor",
    cls=Commands,
    help="Says before a PyTorch DDP job starts whether it will start, be right and be fast on this"
    " machine, and if not, which rank, GPU, link or setting is to blame.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=epilog("ddp-doctor run", "ddp-doctor replay --last", "ddp-doctor explain NCCL_IB_DISABLE"),
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddp-doctor {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Common to all commands."""
