"""The commands with their options and help. What they do is imported when they are called."""

import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ddp_doctor import __version__
from ddp_doctor.cli import complete
from ddp_doctor.cli.help import OUTPUTS, TIME, VERDICT, WHAT, WHERE, Command, Commands, epilog
from ddp_doctor.cli.options import (
    EndpointOption,
    FailOnOption,
    HostfileOption,
    HostsOption,
    IgnoreOption,
    JoinTimeoutOption,
    MasterAddrOption,
    MasterPortOption,
    ModelOption,
    NnodesOption,
    NodeGpusOption,
    NodeRankOption,
    NprocOption,
    OnlyOption,
    RequireGpusOption,
    SkipOption,
    names,
    reported,
)
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import Backend, ExitCode, FailOn, Level

app = typer.Typer(
    name="ddp-doctor",
    cls=Commands,
    help="Says before a PyTorch DDP job starts whether it will start, be right and be fast on this"
    " machine, and if not, which rank, GPU, link or setting is to blame.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=epilog("ddp-doctor run", "ddp-doctor replay --last", "ddp-doctor explain NCCL_IB_DISABLE"),
)


def entry(at_the_end: Callable[[], object] = lambda: None) -> NoReturn:
    """Run the command, then ``at_the_end``, and leave at once: a thread stuck in a driver must not keep the process."""
    code = ExitCode.UNSURE.value  # also where an import fails: an ill doctor is not a sick node
    try:
        complete.prepare()
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
    at_the_end()
    os._exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddp-doctor {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Common to all commands."""


@app.command(
    cls=Command,
    epilog=epilog(
        "ddp-doctor run",
        "ddp-doctor run --only p2p,allreduce --backend nccl",
        "ddp-doctor run --hosts node1,node2 --json report.json",
        "srun --ntasks-per-node=1 ddp-doctor run",
    ),
)
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
        Backend, typer.Option(rich_help_panel=WHERE, help="auto is NCCL where there are GPUs, else gloo.")
    ] = Backend.AUTO,
    level: Annotated[Level, typer.Option(rich_help_panel=WHAT, help="How much to test.")] = Level.STANDARD,
    only: OnlyOption = None,
    skip: SkipOption = None,
    budget: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", rich_help_panel=TIME, help="Time for the checks.")
    ] = 60.0,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove/--no-prove",
            rich_help_panel=WHAT,
            help="Try the recommended settings, with and without them.",
        ),
    ] = True,
    model: ModelOption = "",
    require_gpus: RequireGpusOption = None,
    fail_on: FailOnOption = FailOn.ERROR,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Test these nodes with real ranks and say what is wrong, who is to blame and what fixes it."""
    from ddp_doctor.cli.given import ignored
    from ddp_doctor.cli.run import Launch, run
    from ddp_doctor.model.recording import Options
    from ddp_doctor.starters.place import Asked

    options = Options(
        command="run",
        level=level,
        only=names(only),
        skip=names(skip),
        budget_s=budget,
        ignore=ignored(ignore),
        fail_on=fail_on,
        require_gpus=require_gpus,
        backend=backend,
        prove=prove,
        model=model,
    )
    asked = Asked(nnodes, node_rank, rdzv_endpoint, master_addr, master_port)
    launch = Launch(asked, hosts, hostfile, nproc_per_node, join_timeout)
    return run(options, launch, outputs)


@app.command(
    cls=Command, epilog=epilog("ddp-doctor prolog", "ddp-doctor prolog --require-gpus 8 --unsure fail")
)
@reported
def prolog(
    skip: SkipOption = None,
    require_gpus: NodeGpusOption = None,
    unsure: Annotated[
        str,
        typer.Option(
            metavar="pass|fail",
            rich_help_panel=VERDICT,
            help="What an unsure verdict exits with: 0, or 3.",
        ),
    ] = "pass",
    fail_on: FailOnOption = FailOn.ERROR,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Test what needs no ranks and no torch, in about a second; for the SLURM prolog."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored
    from ddp_doctor.model.recording import Options

    options = Options(
        command="prolog",
        level=Level.QUICK,
        skip=names(skip),
        ignore=ignored(ignore),
        fail_on=fail_on,
        require_gpus=require_gpus,
    )
    return commands.prolog(options, unsure=unsure, outputs=outputs)


@app.command(
    cls=Command,
    epilog=epilog("ddp-doctor replay recording.json", "ddp-doctor replay --last --env-file nccl.env"),
)
@reported
def replay(
    recording: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECORDING|DIR|-]",
            help="A file written by --record, also packed by gzip; a folder with one; or stdin.",
        ),
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", rich_help_panel=WHAT, help="The newest run that was kept here.")
    ] = False,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Judge a recording again, on any machine."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.replay(recording, outputs, last=last, ignore=ignored(ignore))


@app.command(cls=Command, epilog=epilog("ddp-doctor runs", judges=False))
@reported
def runs() -> None:
    """List the runs that were kept here, the newest last: when, the verdict, and where the recording is."""
    from ddp_doctor.cli import commands

    commands.list_runs()


@app.command(
    cls=Command,
    epilog=epilog("ddp-doctor topology", "nvidia-smi topo -m | ddp-doctor topology - --svg node.svg"),
)
@reported
def topology(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|-]",
            help="Output of `nvidia-smi topo -m`, `topo -p2p`, `nvlink -s`, or NCCL's XML; none asks this machine.",
        ),
    ] = None,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Read a GPU topology and say what NCCL will make of it."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.topology(file, outputs, ignored(ignore))


@app.command(cls=Command, epilog=epilog("ddp-doctor env", "ddp-doctor env --from job.sbatch"))
@reported
def env(
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE|-",
            rich_help_panel=WHAT,
            help="Read saved output of `env`, a job script, a Dockerfile or a pod's manifest, and run nothing.",
        ),
    ] = None,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Say which settings of NCCL, torch and gloo are in force, where each comes from and what is wrong."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.env(source, outputs, ignored(ignore))


@app.command(
    cls=Command,
    epilog=epilog("ddp-doctor lint train.py", "ddp-doctor lint src --select DDL1 --output-format github"),
)
@reported
def lint(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE|DIR|-...", help="Scripts, folders of them, or stdin.")
    ],
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODES",
            rich_help_panel=VERDICT,
            help="Apply only rules whose codes begin so: DDL101,DDL12 (repeatable).",
        ),
    ] = None,
    ignore: IgnoreOption = None,
    fail_on: FailOnOption = FailOn.ERROR,
    *,
    outputs: Outputs,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", rich_help_panel=OUTPUTS, help="Nothing but errors and warnings."),
    ] = False,
) -> int:
    """Read training scripts, without running them, and say what is wrong with how they use DDP."""
    from ddp_doctor.cli.lint import lint

    return lint(files, outputs, quiet=quiet, select=select or (), ignore=ignore or (), fail_on=fail_on)


@app.command(cls=Command, epilog=epilog("ddp-doctor checks", judges=False))
@reported
def checks() -> None:
    """List the checks in the order they run, with the rules of each."""
    from ddp_doctor.cli import commands

    typer.echo(commands.list_checks(), nl=False)


@app.command(
    cls=Command,
    epilog=epilog(
        "ddp-doctor explain DD401",
        "ddp-doctor explain DD4",
        "ddp-doctor explain NCCL_IB_DISABLE",
        'ddp-doctor explain "Watchdog caught collective operation timeout"',
        judges=False,
    ),
)
@reported
def explain(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CODE|VARIABLE|TEXT...",
            help="A rule's code, how codes begin, a rule's name, an environment variable, or the text of an error.",
            autocompletion=complete.words_to_explain,
        ),
    ],
) -> None:
    """Print what a rule finds, what a variable does, or what is behind an error, and what fixes it."""
    from ddp_doctor.cli.explain import explain

    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    typer.echo(explain(" ".join(words), width), nl=False)


@app.command(cls=Command, epilog=epilog("ddp-doctor template slurm-prolog", judges=False))
@reported
def template(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The template's name; none lists them.",
            autocompletion=complete.names_of_templates,
        ),
    ] = None,
    require_gpus: NodeGpusOption = None,
) -> None:
    """Print a script for a cluster, such as a prolog of SLURM."""
    from ddp_doctor.cli import commands

    typer.echo(commands.template(name, require_gpus), nl=False)


@app.command(
    cls=Command,
    epilog=epilog(
        'eval "$(ddp-doctor completion bash)"',
        'eval "$(ddp-doctor completion zsh)"',
        "ddp-doctor completion fish | source",
        judges=False,
    ),
)
@reported
def completion(
    shell: Annotated[
        str | None, typer.Argument(metavar="[SHELL]", help="bash, zsh or fish; none is the one in $SHELL.")
    ] = None,
) -> None:
    """Print the script by which a shell completes commands, options, checks and codes."""
    typer.echo(complete.script(shell))
