"""Commands for what a job or a run has left. What they do is imported when they are called."""

from pathlib import Path
from typing import Annotated

import typer

from ddp_doctor.cli.help import ENDED, TOLD, WHAT
from ddp_doctor.cli.options import IgnoreOption, command, option
from ddp_doctor.cli.outputs import Outputs


@command(
    "ddp-doctor logs slurm-4711.out",
    "ddp-doctor logs logs/ /tmp/nccl_trace_rank_*",
    "ddp-doctor logs --job 4711",
    exits=ENDED,
)
def logs(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH|-...", help="Output of the job, dumps of the flight recorder, folders of them, or stdin."
        ),
    ] = None,
    job: Annotated[
        str | None,
        option(
            WHAT, "ID", "Read what SLURM's job has left: its output files, and dumps where its script has them written."
        ),
    ] = None,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Say why a job failed, from its output: the cause, whose fault it is, and what would prove it."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.logs(paths or (), outputs, ignored(ignore), job=job)


@command("ddp-doctor replay recording.json", "ddp-doctor replay --last --settings env:nccl.env")
def replay(
    recording: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECORDING|DIR|-]",
            help="A file written by --record, also packed by gzip; a folder with one; or stdin.",
        ),
    ] = None,
    last: Annotated[bool, option(WHAT, None, "The newest run that was kept here.", "--last")] = False,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Judge a recording again, on any machine."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.replay(recording, outputs, last=last, ignore=ignored(ignore))


@command("ddp-doctor runs", exits=TOLD)
def runs() -> None:
    """List the runs that were kept here, the newest last: when, the verdict, and where the recording is."""
    from ddp_doctor.cli import commands

    commands.list_runs()
