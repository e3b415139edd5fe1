"""The command line, to which before_a_job, while_it_runs, afterwards and reference add their commands; the options that
several of them share, or that torchrun has too."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any

import typer

from ddp_doctor import __version__
from ddp_doctor.cli import complete
from ddp_doctor.cli.help import JUDGED, TIME, VERDICT, WHAT, WHERE, Command, Commands, epilog
from ddp_doctor.cli.help import OUTPUTS as UNDER_OUTPUTS
from ddp_doctor.cli.outputs import FORMS, OUTPUTS, REDACTABLE, Outputs, paths_of_forms
from ddp_doctor.model.choices import Detail, FailOn, OutputFormat, UsageError

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


def option(
    panel: str,
    metavar: str | None,
    words: str,
    *flags: str,
    env: str | None = None,
    min: float | None = None,  # noqa: A002  typer's name for it
    completed: Callable[[str], list[str]] | None = None,
) -> Any:
    """An option under a heading of the help; ``words`` are its help, ``env`` the variable that gives it as well."""
    return typer.Option(
        *flags, rich_help_panel=panel, metavar=metavar, help=words, envvar=env, min=min, autocompletion=completed
    )


_VerboseOption = Annotated[
    bool, option(UNDER_OUTPUTS, None, "Print every check, and why or why not.", "--verbose", "-v")
]
_QuietOption = Annotated[
    bool, option(UNDER_OUTPUTS, None, "Print findings and verdict only, and no progress.", "--quiet", "-q")
]
FailOnOption = Annotated[FailOn, option(VERDICT, None, "The least severity that makes the verdict sick.")]
IgnoreOption = Annotated[
    list[str] | None,
    option(VERDICT, "CODES", "Leave rules out whose codes begin so: DD305,DD4 (repeatable).", completed=complete.codes),
]
OnlyOption = Annotated[
    list[str] | None,
    option(WHAT, "CHECKS", "Run only these checks: p2p,allreduce (repeatable).", completed=complete.names_of_checks),
]
SkipOption = Annotated[
    list[str] | None,
    option(WHAT, "CHECKS", "Leave these checks out: p2p,allreduce (repeatable).", completed=complete.names_of_checks),
]
ModelOption = Annotated[
    str,
    option(
        WHAT,
        "MODULE:FACTORY",
        "A model of yours to test as well: what FACTORY() of MODULE returns is the model, (model, make_batch)"
        " or a dict with model, make_batch(step), loss(output, batch) and ddp, the options of DDP."
        " Your code runs on the ranks.",
    ),
]
CompileOption = Annotated[
    bool, option(WHAT, None, "Look at what torch.compile makes of the model of --model on each rank.", "--compile")
]
CollectiveOption = Annotated[
    list[str] | None,
    option(
        WHAT,
        "NAMES",
        "Test these collectives, too, over sizes and as nccl-tests prints it: all_gather,reduce_scatter (repeatable).",
        completed=complete.collectives,
    ),
]
MeshOption = Annotated[
    str | None,
    option(
        WHAT,
        "NAME=N,...",
        "Test the mesh of your job, the outermost axis first, as init_device_mesh takes it: dp=2,shard=4.",
    ),
]
IsolateOption = Annotated[
    bool, option(WHAT, None, "Find the nodes to blame: test groups of nodes, ever smaller ones.", "--isolate")
]
TopologyOption = Annotated[
    str | None,
    option(WHERE, "FILE", "Leaf switches or racks: topology.conf or .yaml of SLURM, or lines of NAME: HOSTS."),
]
RepeatOption = Annotated[
    int,
    option(
        WHAT,
        "N",
        "Test all ranks, or with --isolate each group, so often, however long that takes, and tell how many fail.",
        min=1,
    ),
]
SoakOption = Annotated[
    float | None, option(TIME, "MINUTES", "Test all ranks again and again for so long, besides --budget.", min=0.0)
]
DataOption = Annotated[
    str, option(WHAT, "PATH", "A file or folder that the job reads: how fast every rank reads it, too.")
]
PlanOption = Annotated[
    bool, option(WHAT, None, "Print what would be tested, on which nodes and in what time; start nothing.", "--plan")
]
MinBusbwOption = Annotated[
    list[str] | None,
    option(
        VERDICT,
        "COLLECTIVE:SIZE=RATE",
        "Sick where the bus bandwidth is less: all_reduce:1G=180GB/s (repeatable).",
        "--min-busbw",
    ),
]
ProveOption = Annotated[
    bool, option(WHAT, None, "Try the recommended settings, with and without them.", "--prove/--no-prove")
]
_RedactOption = Annotated[
    bool,
    option(
        UNDER_OUTPUTS,
        None,
        "Replace names of hosts, users, addresses, paths and serial numbers, to show the result to others.",
        "--redact",
    ),
]
RequireGpusOption = Annotated[int | None, option(VERDICT, "N", "Sick unless the job may use at least N GPUs.", min=0)]
FromTraceOption = Annotated[
    str, option(WHAT, "REPORT", "Try what a report of `trace --json` advises, with the model of --model.")
]
ReplayOption = Annotated[
    str | None,
    option(WHAT, "DUMP", "Run a job's collectives again: a dump of the flight recorder, or a folder of all ranks'."),
]
BaselineOption = Annotated[
    str | None, option(VERDICT, "FILE", "Hold what is measured against healthy runs: a file of fleet --write-baseline.")
]
NodeGpusOption = Annotated[
    int | None, option(VERDICT, "N", "Sick unless the node has at least N GPUs, its job's or not.", min=0)
]

# torchrun's own, with its names, meanings and PET_* variables
NnodesOption = Annotated[
    str,
    option(
        WHERE,
        "N|MIN:MAX",
        "Nodes, at most MAX; by default all that SLURM, mpirun or torchrun has, else this one.",
        env="PET_NNODES",
    ),
]
NprocOption = Annotated[
    str,
    option(
        WHERE,
        "auto|gpu|cpu|N",
        "Ranks on each node; auto is one a GPU, or 2 on CPUs; cpu one a CPU.",
        env="PET_NPROC_PER_NODE",
    ),
]
NodeRankOption = Annotated[int | None, option(WHERE, "R", "This node's number; the head's is 0.", env="PET_NODE_RANK")]
EndpointOption = Annotated[
    str,
    option(
        WHERE, "HOST[:PORT]", "Where the nodes meet: the head and a free port of it (29400).", env="PET_RDZV_ENDPOINT"
    ),
]
MasterAddrOption = Annotated[str, option(WHERE, "HOST", "The head, as torchrun names it.", env="PET_MASTER_ADDR")]
MasterPortOption = Annotated[int | None, option(WHERE, "PORT", "The head's port (29500).", env="PET_MASTER_PORT")]

HostsOption = Annotated[str | None, option(WHERE, "A,B", "Start on these hosts over ssh; the first is the head.")]
HostfileOption = Annotated[
    str | None, option(WHERE, "FILE", "Start on the hosts in this file over ssh, one on each line.")
]
JoinTimeoutOption = Annotated[float, option(TIME, "SECONDS", "Time for all nodes to report in.", min=1.0)]
_FormatOption = Annotated[
    OutputFormat,
    option(
        UNDER_OUTPUTS,
        None,
        "How findings are printed: full, one line each, as annotations of GitHub Actions, or one JSON"
        " object a line for log collectors.",
    ),
]


_SettingsOption = Annotated[
    list[str] | None,
    option(
        UNDER_OUTPUTS,
        "FORM:PATH|-",
        "Write the recommended settings (repeatable), by FORM: "
        + "; ".join(f"{output.name}, {output.help}" for output in FORMS)
        + ".",
        completed=complete.forms_of_settings,
    ),
]


def names(given: list[str] | None) -> tuple[str, ...]:
    """``--only p2p,allreduce --only buffers``: all the names."""
    return tuple(name.strip() for text in given or () for name in text.split(","))


_JUDGE = ("run", "fit", "prolog", "replay", "topology", "env", "logs", "trace", "attach", "fleet", "compare")


def command(
    *examples: str, exits: str = JUDGED, **context_settings: Any
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Add a function to the command line. An error ends in one sentence, and the returned number is the exit code.

    A parameter ``outputs`` is replaced by one option for each output of the command, and by --output-format: typer
    reads the signature.
    """

    def decorate(function: Callable[..., int | None]) -> Callable[..., None]:
        below = epilog(*examples, exits=exits)
        return app.command(cls=Command, epilog=below, context_settings=context_settings)(_reported(function))

    return decorate


def _reported(command: Callable[..., int | None]) -> Callable[..., None]:
    judges = command.__name__ in _JUDGE
    offered = [output for output in OUTPUTS if command.__name__ in output.commands]

    @wraps(command)
    def with_outputs(**given: Any) -> None:
        from ddp_doctor.cli.error_handler import error_handler  # --version and --help need neither

        named = [output.name for output in offered if not output.is_form]
        paths = {name: path for name in named if (path := given.pop(name)) is not None}
        forms = given.pop("settings", None) or ()
        with error_handler():
            if offered:
                paths |= paths_of_forms(forms)
                outputs = Outputs(paths, form=given.pop("output_format"), redact=given.pop("redact", False))
                if judges:
                    detail = _detail(verbose=given.pop("verbose"), quiet=given.pop("quiet"))
                    outputs = replace(outputs, detail=detail)
                given["outputs"] = outputs
                outputs.require_redactable()
                outputs.refuse_unwritable()
            code = command(**given)
        raise typer.Exit(code or 0)

    stand_for_outputs: dict[str, tuple[Any, object]] = {"output_format": (_FormatOption, OutputFormat.FULL)}
    if judges:
        stand_for_outputs |= {"verbose": (_VerboseOption, False), "quiet": (_QuietOption, False)}
    for output in offered:
        written = Annotated[str | None, option(UNDER_OUTPUTS, "PATH|-", output.help, output.option)]
        stand_for_outputs["settings" if output.is_form else output.name] = (
            _SettingsOption if output.is_form else written,
            None,
        )
    if command.__name__ in REDACTABLE:
        stand_for_outputs["redact"] = (_RedactOption, False)
    signature, parameters = inspect.signature(command), []
    for parameter in signature.parameters.values():
        if parameter.name == "outputs":
            parameters += [
                parameter.replace(name=name, default=default, annotation=annotation)
                for name, (annotation, default) in stand_for_outputs.items()
            ]
        else:
            parameters.append(parameter)
    with_outputs.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect reads it
    return with_outputs


def _detail(*, verbose: bool, quiet: bool) -> Detail:
    """How much to print. Raises UsageError."""
    if verbose and quiet:
        raise UsageError("--verbose and --quiet contradict each other: give one")
    return Detail.VERDICT if quiet else Detail.ALL if verbose else Detail.SCREEN
