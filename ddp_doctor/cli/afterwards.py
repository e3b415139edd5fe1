"""The commands for what a job or a run has left; each imports its code when it is called."""

from pathlib import Path
from typing import Annotated

import typer

from ddp_doctor.cli.help import ENDED, INPUT, TRACED, VERDICT
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
            metavar="PATH|-...", help="Job output, flight recorder dumps, directories with such files, or - for stdin."
        ),
    ] = None,
    job: Annotated[
        str | None,
        option(INPUT, "ID", "Read this SLURM job's output files, and the dump files set in its batch script."),
    ] = None,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Find out why a job failed, from its output and dumps."""
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
            help="Trace files from torch.profiler or Kineto, one per rank: files (compressed or not), directories,"
            " archives, or - for stdin.",
        ),
    ],
    window: Annotated[
        str, option(INPUT, "latest|all|N", "Profiler window to analyze, if a rank recorded several.")
    ] = "latest",
    against: Annotated[
        str | None,
        option(
            VERDICT, "REPORT", "Compare the all-reduce bandwidth with this report of ddp-doctor run on the same nodes."
        ),
    ] = None,
    fail_on: FailOnOption = FailOn.WARNING,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Show where step time goes and why, from profiler traces."""
    from ddp_doctor.cli import commands

    return commands.trace(paths, outputs, window=window, against=against, fail_on=fail_on, ignore=ignore or ())


@command("ddp-doctor replay", "ddp-doctor replay recording.json", "ddp-doctor replay --last --settings env:nccl.env")
def replay(
    recording: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECORDING|DIR|-]",
            help="Recording from --record (plain or gzip), a directory with one recording, or - for stdin."
            " [default: list the kept recordings]",
        ),
    ] = None,
    last: Annotated[bool, option(INPUT, None, "Evaluate the newest kept recording.", "--last")] = False,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Evaluate a recording again, or list the kept recordings."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.replay(recording, outputs, last=last, ignore=ignored(ignore))
