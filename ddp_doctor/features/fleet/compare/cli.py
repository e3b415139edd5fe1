"""The command ``compare``; it imports its code when it is called."""

import sys
from typing import Annotated

import typer

from ddp_doctor.cli.options import command
from ddp_doctor.cli.outputs import Outputs

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(
    "ddp-doctor compare baseline.json report.json",
    "ddp-doctor compare monday.json today.json",
    "ddp-doctor compare traces-of-8-ranks/ traces-of-64-ranks/",
    of=app,
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
    """Show the comparison and return the exit code."""
    from ddp_doctor.cli.reporting import report
    from ddp_doctor.features.fleet.compare.use_case import compare
    from ddp_doctor.render import screen
    from ddp_doctor.render.progress import bytes_read

    with bytes_read(screen.console(sys.stderr), quiet=outputs.quiet) as tell:
        outcome = compare(earlier, later, tell)
    return report(outcome, outputs)
