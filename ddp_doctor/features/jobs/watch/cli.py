"""The command ``watch``; it imports its code when it is called."""

import os
from typing import Annotated, Literal

import typer

from ddp_doctor.cli.help import HANGS, OUTPUTS
from ddp_doctor.cli.options import command, option
from ddp_doctor.model.choices import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_LONGEST_STUCK_S = 86_400.0


@command(
    "ddp-doctor watch -- torchrun --nproc-per-node 4 train.py",
    "srun ddp-doctor watch -- python train.py",
    of=app,
    exits="Exit codes: the exit code or signal of CMD, 2 usage error, 126 CMD not executable, 127 CMD not found.",
    allow_interspersed_args=False,
)
def watch(
    command: Annotated[
        list[str],
        typer.Argument(metavar="CMD...", help="Command that starts the job, as you would run it without ddp-doctor."),
    ],
    stuck_after: Annotated[
        float,
        option(HANGS, "SECONDS", "Examine the job when a rank has made no progress for this many seconds.", min=10.0),
    ] = 120.0,
    on_hang: Annotated[
        Literal["report", "kill"],
        option(HANGS, None, "Action once a hang is proven: report it, or kill (send SIGTERM to CMD only)."),
    ] = "report",
    keep_output: Annotated[
        bool,
        option(
            OUTPUTS,
            None,
            "Capture CMD's output through a pipe, unless the output is redirected to a file.",
            "--keep-output",
        ),
    ] = False,
    tell_slow: Annotated[
        bool, option(OUTPUTS, None, "Report a slowdown when it happens, not at the end of the job.", "--tell-slow")
    ] = False,
) -> int:
    """Run the job and return its exit code."""
    from ddp_doctor.cli.error_handler import print_to_stderr
    from ddp_doctor.features.jobs.watch.lookout import WatchOptions
    from ddp_doctor.features.jobs.watch.watching import watch

    if not stuck_after <= _LONGEST_STUCK_S:
        raise UsageError(f"invalid --stuck-after {stuck_after:g}: expected 10 to {_LONGEST_STUCK_S:g} seconds (a day)")
    options = WatchOptions(stuck_after, on_hang == "kill", keep_output, tell_slow)
    return watch(command, os.environ, options, lambda sentence: print_to_stderr(f"ddp-doctor: {sentence}"))
