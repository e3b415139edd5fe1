"""The command line: parse, call the app, render, exit. Only this and cli_options import typer."""

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ddp_doctor import __version__
from ddp_doctor.cli_options import (
    NOWHERE,
    EndpointOption,
    EnvFileOption,
    FailOnOption,
    HostfileOption,
    HostsOption,
    JoinTimeoutOption,
    JsonOption,
    MasterAddrOption,
    MasterPortOption,
    ModelOption,
    NnodesOption,
    NodeRankOption,
    NprocOption,
    OnlyOption,
    Pasted,
    QuietOption,
    RecordOption,
    RequireGpusOption,
    SkipOption,
    handing_over,
)
from ddp_doctor.model.choices import Backend, ExitCode, FailOn, Level

if TYPE_CHECKING:
    from ddp_doctor.render.outputs import Outputs

app = typer.Typer(
    name="ddp-doctor",
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
        if isinstance(
            leaving.code, str
        ):  # some module that was imported ended the program with its own words
            sys.stderr.write(
                f"ddp-doctor was ended by what it imported, so the verdict is unsure: {leaving.code}\n"
            )
    except Exception:  # noqa: BLE001 - outside of a command's own handler only imports can fail
        sys.stderr.write(f"ddp-doctor failed itself, so the verdict is unsure\n{traceback.format_exc()}")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a full disk; there is nobody to tell
            code = code or ExitCode.UNSURE.value
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
@handing_over
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
    json_path: JsonOption = None,
    env_file: EnvFileOption = None,
    pasted: Pasted = NOWHERE,
    record: RecordOption = None,
    quiet: QuietOption = False,
) -> None:
    """Test these nodes with real ranks and say what is wrong, who is to blame and what mends it."""
    from ddp_doctor import commands
    from ddp_doctor.guard import guarded
    from ddp_doctor.model.recording import Options
    from ddp_doctor.starters.place import Asked

    options = Options(
        command="run",
        level=level,
        only=tuple(only or ()),
        skip=tuple(skip or ()),
        budget_s=budget,
        fail_on=fail_on,
        require_gpus=require_gpus,
        backend=backend,
        prove=prove,
        model=model,
    )
    asked = Asked(nnodes, node_rank, rdzv_endpoint, master_addr, master_port)
    launch = commands.Launch(asked, hosts, hostfile, nproc_per_node, join_timeout)
    with guarded():
        outputs = _outputs(pasted, json=json_path, env_file=env_file, record=record, quiet=quiet)
        code = commands.run(options, launch, outputs)
    raise typer.Exit(code)


@app.command()
def prolog(
    skip: SkipOption = None,
    require_gpus: RequireGpusOption = None,
    unsure: Annotated[
        str, typer.Option(metavar="pass|fail", help="What an unsure verdict exits with: 0, or 3.")
    ] = "pass",
    fail_on: FailOnOption = FailOn.ERROR,
    json_path: JsonOption = None,
    record: RecordOption = None,
) -> None:
    """Test what needs no ranks and no torch, in about a second; for the SLURM prolog."""
    from ddp_doctor import commands
    from ddp_doctor.guard import guarded
    from ddp_doctor.model.recording import Options

    options = Options(
        command="prolog",
        level=Level.QUICK,
        skip=tuple(skip or ()),
        fail_on=fail_on,
        require_gpus=require_gpus,
    )
    with guarded():
        outputs = _outputs(NOWHERE, json=json_path, record=record)
        code = commands.prolog(options, unsure=unsure, outputs=outputs)
    raise typer.Exit(code)


@app.command()
@handing_over
def replay(
    recording: Annotated[
        Path, typer.Argument(metavar="RECORDING|-", help="A file written by --record, or stdin.")
    ],
    json_path: JsonOption = None,
    env_file: EnvFileOption = None,
    pasted: Pasted = NOWHERE,
) -> None:
    """Judge a recording again, on any machine."""
    from ddp_doctor import commands
    from ddp_doctor.guard import guarded

    with guarded():
        outputs = _outputs(pasted, json=json_path, env_file=env_file)
        code = commands.replay(recording, outputs)
    raise typer.Exit(code)


@app.command()
@handing_over
def topology(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|-]",
            help="Output of `nvidia-smi topo -m`, `topo -p2p`, `nvlink -s`, or NCCL's XML; none asks this machine.",
        ),
    ] = None,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="PATH|-", help="Write a picture of the machine.")
    ] = None,
    json_path: JsonOption = None,
    env_file: EnvFileOption = None,
    pasted: Pasted = NOWHERE,
    record: RecordOption = None,
) -> None:
    """Read a GPU topology and say what NCCL will make of it."""
    from ddp_doctor import commands
    from ddp_doctor.guard import guarded

    with guarded():
        outputs = _outputs(pasted, json=json_path, env_file=env_file, record=record, svg=svg)
        code = commands.topology(file, outputs)
    raise typer.Exit(code)


@app.command()
@handing_over
def env(
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE|-",
            help="Read saved output of `env`, a job script, a Dockerfile or a pod's manifest, and run nothing.",
        ),
    ] = None,
    json_path: JsonOption = None,
    env_file: EnvFileOption = None,
    pasted: Pasted = NOWHERE,
    record: RecordOption = None,
) -> None:
    """Say which settings of NCCL, torch and gloo are in force, where each comes from and what is wrong."""
    from ddp_doctor import commands
    from ddp_doctor.guard import guarded

    with guarded():
        outputs = _outputs(pasted, json=json_path, env_file=env_file, record=record)
        code = commands.env(source, outputs)
    raise typer.Exit(code)


@app.command()
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
    json_path: JsonOption = None,
    sarif: Annotated[
        str | None, typer.Option(metavar="PATH|-", help="Write the findings as SARIF 2.1.0.")
    ] = None,
    junit: Annotated[
        str | None, typer.Option(metavar="PATH|-", help="Write the findings as JUnit XML.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but errors and warnings.")] = False,
) -> None:
    """Read training scripts, without running them, and say what is wrong with how they use DDP."""
    from ddp_doctor import lint_command
    from ddp_doctor.guard import guarded
    from ddp_doctor.model.usage import UsageError

    with guarded():
        if (json_path, sarif, junit).count("-") > 1:
            raise UsageError("only one output can go to stdout (-); give the others a path")
        outputs = lint_command.LintOutputs(json_path, sarif, junit, quiet)
        wanted = {"select": select or (), "ignore": ignore or ()}
        code = lint_command.lint(files, outputs, (sys.stdout, sys.stderr), fail_on=fail_on, **wanted)
    raise typer.Exit(code)


@app.command()
def checks() -> None:
    """List the checks in the order they run, with the rules of each."""
    from ddp_doctor import commands

    typer.echo(commands.list_checks(), nl=False)


@app.command()
def explain(code: Annotated[str, typer.Argument(help="A rule's code or name, such as DD401.")]) -> None:
    """Print what a rule finds, why it matters and what mends it."""
    from ddp_doctor import commands
    from ddp_doctor.guard import guarded

    with guarded():
        typer.echo(commands.explain(code), nl=False)


@app.command()
def template(
    name: Annotated[str | None, typer.Argument(help="The template's name; none lists them.")] = None,
) -> None:
    """Print a script for a cluster, such as slurm-prolog."""
    from ddp_doctor import commands
    from ddp_doctor.guard import guarded

    with guarded():
        typer.echo(commands.template(name), nl=False)


def _outputs(
    pasted: Pasted,
    *,
    json: str | None,
    env_file: str | None = None,
    record: str | None = None,
    quiet: bool = True,
    svg: str | None = None,
) -> "Outputs":
    """Where the results go. Raises UsageError."""
    from ddp_doctor.app import UsageError
    from ddp_doctor.render.outputs import Outputs

    if (json, env_file, record, svg, *pasted).count("-") > 1:
        raise UsageError("only one output can go to stdout (-); give the others a path")
    return Outputs(json=json, env_file=env_file, record=record, quiet=quiet, svg=svg, **pasted._asdict())
