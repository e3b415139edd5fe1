"""The command ``fleet``; it imports its code when it is called."""

import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from ddp_doctor.cli.help import OUTPUTS
from ddp_doctor.cli.options import command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import as_usage_error

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(
    "ddp-doctor fleet /shared/reports --json /shared/reports/fleet.json",
    "ddp-doctor fleet reports/*.json --write-baseline baseline.json",
    of=app,
)
def fleet(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|DIR...",
            help="Reports and recordings from run and prolog (plain or gzip), directories with such files, and an"
            " earlier fleet report to compare with.",
        ),
    ],
    write_baseline: Annotated[
        str | None,
        option(OUTPUTS, "PATH", "Write a baseline of the healthy and degraded runs, for run --baseline and compare."),
    ] = None,
    *,
    outputs: Outputs,
) -> int:
    """Run the command."""
    return compare_runs(paths, write_baseline, outputs)


def compare_runs(paths: Sequence[str], write_baseline: str | None, outputs: Outputs) -> int:
    """Show the report, write the baseline and return the exit code. Raises UsageError."""
    from ddp_doctor.cli.reporting import report
    from ddp_doctor.features.fleet.use_case import baseline_of, fleet_outcome, read_fleet
    from ddp_doctor.render import screen
    from ddp_doctor.render.files import CannotWrite, write
    from ddp_doctor.render.progress import progress

    started = time.monotonic()
    if write_baseline is not None:
        Outputs({"baseline": write_baseline}).refuse_unwritable()
    with progress(screen.console(sys.stderr), (), quiet=outputs.quiet) as tell:
        found = read_fleet(paths, tell)
    code = report(fleet_outcome(found, started), outputs)
    if write_baseline is None:
        return code
    with as_usage_error(CannotWrite):
        write(write_baseline, baseline_of(found))
    return code
