"""Commands for a job that runs. What they do is imported when they are called."""

from typing import Annotated

import typer

from ddp_doctor.cli.app import app
from ddp_doctor.cli.help import WHAT, Command, epilog
from ddp_doctor.cli.options import HostfileOption, HostsOption, IgnoreOption, reported
from ddp_doctor.cli.outputs import Outputs


@app.command(
    cls=Command,
    epilog=epilog(
        "ddp-doctor attach",
        "ddp-doctor attach --pid 4711",
        "ddp-doctor attach --slurm-job 4711",
        "ddp-doctor attach --hosts node1,node2",
        live=True,
    ),
)
@reported
def attach(
    pid: Annotated[
        int | None,
        typer.Option(
            "--pid",
            min=1,
            metavar="P",
            rich_help_panel=WHAT,
            help="Look at the job of this process: a rank, or who started the ranks.",
        ),
    ] = None,
    slurm_job: Annotated[
        str | None,
        typer.Option(
            "--slurm-job",
            metavar="ID",
            rich_help_panel=WHAT,
            help="Look at this job of SLURM on all its nodes.",
        ),
    ] = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Say what jobs do now: whether they get on, and who keeps the others waiting. It only reads."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import given_hosts, ignored

    return commands.attach(pid, slurm_job, given_hosts(hosts, hostfile), outputs, ignored(ignore))
