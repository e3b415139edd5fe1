"""The commands for clusters; each imports its code when it is called."""

import sys
from typing import Annotated

import typer

from ddp_doctor.cli.help import OUTPUTS
from ddp_doctor.cli.options import command, option
from ddp_doctor.cli.outputs import Outputs


@command(
    "ddp-doctor fleet /shared/reports --json /shared/reports/fleet.json",
    "ddp-doctor fleet reports/*.json --write-baseline baseline.json",
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
    """Compare many runs and list unhealthy, differing and slow nodes."""
    from ddp_doctor.cli import commands

    return commands.fleet(paths, write_baseline, outputs)


@command(
    "ddp-doctor compare baseline.json report.json",
    "ddp-doctor compare monday.json today.json",
    "ddp-doctor compare traces-of-8-ranks/ traces-of-64-ranks/",
)
def compare(
    earlier: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Baseline, report, recording, `logs --json` report of nccl-tests output, trace file, or directory of"
            " traces.",
        ),
    ],
    later: Annotated[
        str,
        typer.Argument(
            metavar="B", help="Report, recording, `logs --json` report or traces of another run, to compare with A."
        ),
    ],
    *,
    outputs: Outputs,
) -> int:
    """Compare two runs or traces: what is slower and what differs."""
    from ddp_doctor.app.compare import beside
    from ddp_doctor.cli.reporting import report
    from ddp_doctor.render import screen
    from ddp_doctor.render.progress import bytes_read

    with bytes_read(screen.console(sys.stderr), quiet=outputs.quiet) as tell:
        outcome = beside(earlier, later, tell)
    return report(outcome, outputs)
