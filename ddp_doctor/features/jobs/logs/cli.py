"""The command ``logs``; it imports its code when it is called."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ddp_doctor.cli.help import ENDED, INPUT
from ddp_doctor.cli.options import IgnoreOption, command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import UsageError, as_usage_error
from ddp_doctor.model.error_text import quoted

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(
    "ddp-doctor logs slurm-4711.out",
    "ddp-doctor logs logs/ /tmp/nccl_trace_rank_*",
    "ddp-doctor logs --job 4711",
    exits=ENDED,
    of=app,
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
    """Read the files and show the report."""
    from ddp_doctor.cli.given import ignored
    from ddp_doctor.cli.reporting import report
    from ddp_doctor.features.jobs.logs.use_case import logs
    from ddp_doctor.features.jobs.sources.slurm import files_of_job
    from ddp_doctor.render import screen
    from ddp_doctor.render.progress import bytes_read

    codes = ignored(ignore)
    with as_usage_error():
        found = list(map(str, files_of_job(job, os.environ, Path.cwd()))) if job is not None else []
    if job is not None and not found:
        raise UsageError(f"found no files of job {quoted(job)}; name its output files instead")
    if not paths and not found:
        raise UsageError("no input given; name the job's output files, or give the job ID with --job")
    with bytes_read(screen.console(sys.stderr), quiet=outputs.quiet) as tell:
        outcome = logs((*(paths or ()), *found), codes, tell)
    return report(outcome, outputs)
