"""The commands ``compare`` and ``replay`` for earlier runs; each imports its code when it is called."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ddp_doctor.cli.help import INPUT
from ddp_doctor.cli.options import IgnoreOption, command, option
from ddp_doctor.cli.outputs import Outputs


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
