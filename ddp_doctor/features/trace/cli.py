"""The command ``trace``; it imports its code when it is called."""

import os
import sys
from typing import Annotated

import typer

from ddp_doctor.cli.help import INPUT, VERDICT
from ddp_doctor.cli.options import FailOnOption, IgnoreOption, command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import Command, FailOn, UsageError
from ddp_doctor.model.error_text import quoted

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(
    "ddp-doctor trace traces/",
    "ddp-doctor trace rank*.json.gz --html trace.html",
    "ddp-doctor trace traces/ --window all --against preflight.json",
    exits="Exit codes: 0 no certain bottleneck above 10% of step time, 1 finding at or above --fail-on, 2 usage error"
    " or no trace, 3 unsure, 130 interrupted.",
    of=app,
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
    """Analyze the traces, keep the recording and show the report."""
    from ddp_doctor.cli.given import ignored
    from ddp_doctor.cli.reporting import save_and_report
    from ddp_doctor.features.trace import use_case
    from ddp_doctor.model.recording import Options
    from ddp_doctor.render import screen
    from ddp_doctor.render.progress import bytes_read

    if window not in ("latest", "all") and not (window.isdecimal() and 0 < int(window) < 10**9):
        raise UsageError(f"invalid --window {quoted(window)}: expected latest, all or a number of at least 1")
    options = Options(command=Command.TRACE, window=window, fail_on=fail_on, ignore=ignored(list(ignore or ())))
    with bytes_read(screen.console(sys.stderr), quiet=outputs.quiet) as tell:
        outcome = use_case.trace(paths, options, tell, against)
    return save_and_report(outcome, outputs, os.environ)
