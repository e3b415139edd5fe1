"""Commands for what a job or a run has left. What they do is imported when they are called."""

from pathlib import Path
from typing import Annotated

import typer

from ddp_doctor.cli.help import ENDED, TRACED, VERDICT, WHAT
from ddp_doctor.cli.options import FailOnOption, IgnoreOption, command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import FailOn


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


@command(
    "ddp-doctor trace traces/",
    "ddp-doctor trace rank*.json.gz --html trace.html",
    "ddp-doctor trace traces/ --window all --against preflight.json",
    exits=TRACED,
)
def trace(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH|-...",
            help="Traces of torch.profiler or Kineto, one file for each rank, also packed; folders and archives of"
            " them, or stdin.",
        ),
    ],
    window: Annotated[
        str,
        option(WHAT, "latest|all|N", "Which steps, where a rank recorded several times; each time is judged alone."),
    ] = "latest",
    against: Annotated[
        str | None,
        option(VERDICT, "REPORT", "Hold transfers against the bandwidth that a run on these nodes has measured."),
    ] = None,
    fail_on: FailOnOption = FailOn.WARNING,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Say where a step's time goes, by the profiler's traces: which rank is late and why, and what would be faster."""
    from ddp_doctor.cli import commands

    return commands.trace(paths, outputs, window=window, against=against, fail_on=fail_on, ignore=ignore or ())


@command("ddp-doctor replay", "ddp-doctor replay recording.json", "ddp-doctor replay --last --settings env:nccl.env")
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
