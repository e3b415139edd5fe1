"""Commands for those who run many nodes. What they do is imported when they are called."""

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
            help="Reports (--json) and recordings (--record) of run and prolog, also packed by gzip, and folders of"
            " them. An earlier fleet report among them is what changes are told from.",
        ),
    ],
    write_baseline: Annotated[
        str | None, option(OUTPUTS, "PATH", "Write what the healthy runs measured, for run --baseline and compare.")
    ] = None,
    *,
    outputs: Outputs,
) -> int:
    """Compare many runs: which nodes are unhealthy, differ, or are slower than the others."""
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
            help="A baseline, the report or recording of a run or of logs that read nccl-tests or NCCL Inspector, or"
            " traces: a file, or a folder of ranks.",
        ),
    ],
    later: Annotated[
        str,
        typer.Argument(metavar="B", help="The report or recording of another run or of other logs, or other traces."),
    ],
    *,
    outputs: Outputs,
) -> int:
    """Say whether B is slower than A by more than noise, which node or part of a step, and in what else they differ."""
    from ddp_doctor.cli import commands

    return commands.compare(earlier, later, outputs)
