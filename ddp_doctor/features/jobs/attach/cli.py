"""The command ``attach``; it imports its code when it is called."""

import os
import sys
from typing import Annotated

import typer

from ddp_doctor.cli.help import INPUT, LIVE
from ddp_doctor.cli.options import HostfileOption, HostsOption, IgnoreOption, command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: Agents on other hosts hold a connection for this long.
_LONGEST_WATCH_S = 3600.0


@command(
    "ddp-doctor attach",
    "ddp-doctor attach --pid 4711",
    "ddp-doctor attach --slurm-job 4711",
    "ddp-doctor attach --hosts node1,node2",
    exits=LIVE,
    of=app,
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
    """Observe the jobs, keep the recording and show the report."""
    from ddp_doctor.cli.given import given_hosts, ignored
    from ddp_doctor.cli.reporting import save_and_report
    from ddp_doctor.features.jobs.attach.nodes import attach_to_hosts, attach_to_slurm_job, be_agent
    from ddp_doctor.features.jobs.attach.use_case import SECONDS, Watching, attach
    from ddp_doctor.render import screen
    from ddp_doctor.render.progress import progress
    from ddp_doctor.starters import starter_channel

    named, codes = given_hosts(hosts, hostfile), ignored(ignore)
    if (pid is not None) + (slurm_job is not None) + bool(named) > 1:
        raise UsageError("--pid, --slurm-job, --hosts and --hostfile are mutually exclusive; give one of them")
    seconds = SECONDS if seconds is None else seconds
    if not SECONDS <= seconds <= _LONGEST_WATCH_S:
        raise UsageError(
            f"invalid --seconds {seconds:g}: expected {SECONDS:g} (the default) to {_LONGEST_WATCH_S:g} seconds;"
            " a shorter time cannot show whether a job hangs"
        )
    env = dict(os.environ)
    if pipe := starter_channel.take(env):
        return be_agent(pipe, pid, slurm_job, Watching(env=env, seconds=seconds))
    with progress(screen.console(sys.stderr), (), quiet=outputs.quiet) as tell:
        how = Watching(codes, tell, env, seconds)
        if named:
            outcome = attach_to_hosts(named, how)
        elif slurm_job is not None:
            outcome = attach_to_slurm_job(slurm_job, how)
        else:
            outcome = attach([pid] if pid is not None else None, None, how, from_start=True)
    return save_and_report(outcome, outputs, env)
