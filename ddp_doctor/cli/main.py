"""The commands with their options and help. What they do is imported when they are called."""

import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ddp_doctor import __version__
from ddp_doctor.cli.options import (
    EndpointOption,
    FailOnOption,
    HostfileOption,
    HostsOption,
    JoinTimeoutOption,
    MasterAddrOption,
    MasterPortOption,
    ModelOption,
    NnodesOption,
    NodeGpusOption,
    NodeRankOption,
    NprocOption,
    OnlyOption,
    QuietOption,
    RequireGpusOption,
    SkipOption,
    names,
    reported,
)
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import Backend, ExitCode, FailOn, Level


class _Commands(TyperGroup):
    """The commands, whose usage errors are sentences: some releases of typer put a word of pydantic's before them."""

    def invoke(self, ctx: Any) -> Any:  # click's class, or typer's own
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="ddp-doctor",
    cls=_Commands,
    help="Says before a PyTorch DDP job starts whether it will start, be right and be fast on this"
    " machine, and if not, which rank, GPU, link or setting is to blame.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def entry() -> NoReturn:
    """Run the command and leave at once: a thread stuck in a driver must not keep the process."""
    code = ExitCode.UNSURE.value  # also where an import fails: an ill doctor is not a sick node
    try:
        app()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else ExitCode.UNSURE.value
        if isinstance(leaving.code, str):  # a module that was imported ended the program with its own words
            sys.stderr.write(
                f"ddp-doctor was ended by what it imported, so the verdict is unsure: {leaving.code}\n"
            )
    except Exception:  # noqa: BLE001 - outside of a command's own handler only imports of these modules can fail
        sys.stderr.write(f"ddp-doctor failed itself, so the verdict is unsure\n{traceback.format_exc()}")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a full disk; there is nobody to tell
            code = code or ExitCode.UNSURE.value
    if "ddp_doctor.sources.commands" in sys.modules:  # else nothing was started
        from ddp_doctor.ranks.process import kill_stopped_children

        kill_stopped_children()
    os._exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddp-doctor {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Common to all commands."""


@app.command()
@reported
def run(
    nnodes: NnodesOption = "",
    nproc_per_node: NprocOption = "auto",
    node_rank: NodeRankOption = None,
    rdzv_endpoint: EndpointOption = "",
    master_addr: MasterAddrOption = "",
    master_port: MasterPortOption = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    join_timeout: JoinTimeoutOption = 60.0,
    backend: Annotated[
        Backend, typer.Option(help="auto is NCCL where there are GPUs, else gloo.")
    ] = Backend.AUTO,
    level: Annotated[Level, typer.Option(help="How much to test.")] = Level.STANDARD,
    only: OnlyOption = None,
    skip: SkipOption = None,
    budget: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="Time for the checks.")] = 60.0,
    prove: Annotated[
        bool, typer.Option("--prove/--no-prove", help="Try the recommended settings, with and without them.")
    ] = True,
    model: ModelOption = "",
    require_gpus: RequireGpusOption = None,
    fail_on: FailOnOption = FailOn.ERROR,
    *,
    outputs: Outputs,
    quiet: QuietOption = False,
) -> int:
    """Test these nodes with real ranks and say what is wrong, who is to blame and what fixes it."""
    from ddp_doctor.cli.run import Launch, run
    from ddp_doctor.model.recording import Options
    from ddp_doctor.starters.place import Asked

    options = Options(
        command="run",
        level=level,
        only=names(only),
        skip=names(skip),
        budget_s=budget,
        fail_on=fail_on,
        require_gpus=require_gpus,
        backend=backend,
        prove=prove,
        model=model,
    )
    asked = Asked(nnodes, node_rank, rdzv_endpoint, master_addr, master_port)
    launch = Launch(asked, hosts, hostfile, nproc_per_node, join_timeout)
    return run(options, launch, replace(outputs, quiet=quiet))


@app.command()
@reported
def prolog(
    skip: SkipOption = None,
    require_gpus: NodeGpusOption = None,
    unsure: Annotated[
        str, typer.Option(metavar="pass|fail", help="What an unsure verdict exits with: 0, or 3.")
    ] = "pass",
    fail_on: FailOnOption = FailOn.ERROR,
    *,
    outputs: Outputs,
) -> int:
    """Test what needs no ranks and no torch, in about a second; for the SLURM prolog."""
    from ddp_doctor.cli import commands
    from ddp_doctor.model.recording import Options

    options = Options(
        command="prolog",
        level=Level.QUICK,
        skip=names(skip),
        fail_on=fail_on,
        require_gpus=require_gpus,
    )
    return commands.prolog(options, unsure=unsure, outputs=outputs)


@app.command()
@reported
def replay(
    recording: Annotated[
        Path,
        typer.Argument(
            metavar="RECORDING|-", help="A file written by --record, also packed by gzip, or stdin."
        ),
    ],
    outputs: Outputs,
) -> int:
    """Judge a recording again, on any machine."""
    from ddp_doctor.cli import commands

    return commands.replay(recording, outputs)


@app.command()
@reported
def topology(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|-]",
            help="Output of `nvidia-smi topo -m`, `topo -p2p`, `nvlink -s`, or NCCL's XML; none asks this machine.",
        ),
    ] = None,
    *,
    outputs: Outputs,
) -> int:
    """Read a GPU topology and say what NCCL will make of it."""
    from ddp_doctor.cli import commands

    return commands.topology(file, outputs)


@app.command()
@reported
def env(
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE|-",
            help="Read saved output of `env`, a job script, a Dockerfile or a pod's manifest, and run nothing.",
        ),
    ] = None,
    *,
    outputs: Outputs,
) -> int:
    """Say which settings of NCCL, torch and gloo are in force, where each comes from and what is wrong."""
    from ddp_doctor.cli import commands

    return commands.env(source, outputs)


@app.command()
@reported
def lint(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE|DIR|-...", help="Scripts, folders of them, or stdin.")
    ],
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODES", help="Apply only rules whose codes begin so: DDL101,DDL12 (repeatable)."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="CODES", help="Leave rules out whose codes begin so (repeatable)."),
    ] = None,
    fail_on: FailOnOption = FailOn.ERROR,
    *,
    outputs: Outputs,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but errors and warnings.")] = False,
) -> int:
    """Read training scripts, without running them, and say what is wrong with how they use DDP."""
    from ddp_doctor.cli.lint import lint

    outputs = replace(outputs, quiet=quiet)
    return lint(files, outputs, select=select or (), ignore=ignore or (), fail_on=fail_on)


@app.command()
@reported
def checks() -> None:
    """List the checks in the order they run, with the rules of each."""
    from ddp_doctor.cli import commands

    typer.echo(commands.list_checks(), nl=False)


@app.command()
@reported
def explain(code: Annotated[str, typer.Argument(help="A rule's code or name, such as DD401.")]) -> None:
    """Print what a rule finds, why it matters and what fixes it."""
    from ddp_doctor.cli import commands

    typer.echo(commands.explain(code), nl=False)


@app.command()
@reported
def template(
    name: Annotated[str | None, typer.Argument(help="The template's name; none lists them.")] = None,
    require_gpus: NodeGpusOption = None,
) -> None:
    """Print a script for a cluster, such as slurm-prolog."""
    from ddp_doctor.cli import commands

    typer.echo(commands.template(name, require_gpus), nl=False)
