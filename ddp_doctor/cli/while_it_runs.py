"""Commands for a job that runs. What they do is imported when they are called."""

from typing import Annotated, Literal

import typer

from ddp_doctor.cli.help import LIVE, OUTPUTS, TIME, VERDICT, WHAT
from ddp_doctor.cli.options import HostfileOption, HostsOption, IgnoreOption, command, option
from ddp_doctor.cli.outputs import Outputs


@command(
    "ddp-doctor attach",
    "ddp-doctor attach --pid 4711",
    "ddp-doctor attach --slurm-job 4711",
    "ddp-doctor attach --hosts node1,node2",
    exits=LIVE,
)
def attach(
    pid: Annotated[
        int | None, option(WHAT, "P", "Look at the job of this process: a rank, or who started the ranks.", min=1)
    ] = None,
    slurm_job: Annotated[str | None, option(WHAT, "ID", "Look at this job of SLURM on all its nodes.")] = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    seconds: Annotated[float | None, option(TIME, "N", "Watch for N seconds; by default 4.")] = None,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Say what jobs do now: whether they get on, and who keeps the others waiting. It only reads."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import given_hosts, ignored

    return commands.attach(pid, slurm_job, given_hosts(hosts, hostfile), outputs, ignored(ignore), seconds)


_LONGEST_STUCK_S = 86_400.0


@command(
    "ddp-doctor watch -- torchrun --nproc-per-node 4 train.py",
    "srun ddp-doctor watch -- python train.py",
    exits="Exit codes: those of CMD, and the signal that ended it; 2 wrong use, 126 CMD cannot be executed, 127 it"
    " was not found.",
    allow_interspersed_args=False,
)
def watch(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD", help="What to run, as it would be run without the watcher.")
    ],
    stuck_after: Annotated[
        float, option(TIME, "SECONDS", "Judge a job of which a rank stands still so long.", min=10.0)
    ] = 120.0,
    on_hang: Annotated[
        Literal["report", "kill"],
        option(VERDICT, None, "kill sends CMD, and nobody else, SIGTERM once the job is known to hang."),
    ] = "report",
    keep_output: Annotated[
        bool,
        option(
            OUTPUTS,
            None,
            "Keep what CMD says where it goes to no file by itself. CMD then sees a pipe, no terminal.",
            "--keep-output",
        ),
    ] = False,
    tell_slow: Annotated[
        bool,
        option(OUTPUTS, None, "Say that the job has become slower when it happens, not at its end.", "--tell-slow"),
    ] = False,
) -> int:
    """Run a job with a watcher beside it, which says why it hangs, is slower or has failed, and else nothing."""
    import os

    from ddp_doctor.cli.error_handler import print_to_stderr
    from ddp_doctor.model.choices import UsageError
    from ddp_doctor.watch.lookout import WatchOptions
    from ddp_doctor.watch.watching import watch

    if not stuck_after <= _LONGEST_STUCK_S:
        raise UsageError(f"invalid --stuck-after {stuck_after:g}: expected 10 to {_LONGEST_STUCK_S:g} (a day)")
    options = WatchOptions(stuck_after, on_hang == "kill", keep_output, tell_slow)
    return watch(command, os.environ, options, lambda sentence: print_to_stderr(f"ddp-doctor: {sentence}"))
