"""The commands for a job that runs or has ended, and for kept recordings; each imports its code when it is called."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ddp_doctor.cli.help import ENDED, HANGS, INPUT, LIVE, OUTPUTS
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
        int | None, option(INPUT, "P", "ID of a process of the job to watch: a rank or its launcher.", min=1)
    ] = None,
    slurm_job: Annotated[str | None, option(INPUT, "ID", "ID of the SLURM job to watch on all its nodes.")] = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    seconds: Annotated[float | None, option(INPUT, "N", "Seconds to watch. [default: 4]")] = None,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Show whether running jobs make progress, and which rank holds them up. Read-only."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import given_hosts, ignored

    return commands.attach(pid, slurm_job, given_hosts(hosts, hostfile), outputs, ignored(ignore), seconds)


_LONGEST_STUCK_S = 86_400.0


@command(
    "ddp-doctor watch -- torchrun --nproc-per-node 4 train.py",
    "srun ddp-doctor watch -- python train.py",
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
    """Run a job and report why it hangs, slows down or fails."""
    import os

    from ddp_doctor.cli.error_handler import print_to_stderr
    from ddp_doctor.model.choices import UsageError
    from ddp_doctor.watch.lookout import WatchOptions
    from ddp_doctor.watch.watching import watch

    if not stuck_after <= _LONGEST_STUCK_S:
        raise UsageError(f"invalid --stuck-after {stuck_after:g}: expected 10 to {_LONGEST_STUCK_S:g} seconds (a day)")
    options = WatchOptions(stuck_after, on_hang == "kill", keep_output, tell_slow)
    return watch(command, os.environ, options, lambda sentence: print_to_stderr(f"ddp-doctor: {sentence}"))


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
