"""The options that several commands share, or that torchrun has too, and what is common to all commands."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any

import typer

from ddp_doctor.cli import complete
from ddp_doctor.cli.help import OUTPUTS as UNDER_OUTPUTS
from ddp_doctor.cli.help import TIME, VERDICT, WHAT, WHERE
from ddp_doctor.cli.outputs import FORMS, OUTPUTS, REDACTABLE, Output, Outputs, paths_of_forms
from ddp_doctor.model.choices import Detail, FailOn, OutputFormat, UsageError


def _list(flag: str, metavar: str, words: str, panel: str, completed: Callable[[str], list[str]]) -> Any:
    """An option that takes several names, after commas or when it is repeated."""
    return typer.Option(
        flag, autocompletion=completed, metavar=metavar, rich_help_panel=panel, help=f"{words} (repeatable)."
    )


VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", rich_help_panel=UNDER_OUTPUTS, help="Print every check, and why or why not.")
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", rich_help_panel=UNDER_OUTPUTS, help="Print findings and verdict only, and no progress."
    ),
]
FailOnOption = Annotated[
    FailOn, typer.Option(rich_help_panel=VERDICT, help="The least severity that makes the verdict sick.")
]
IgnoreOption = Annotated[
    list[str] | None,
    _list("--ignore", "CODES", "Leave rules out whose codes begin so: DD305,DD4", VERDICT, complete.codes),
]
OnlyOption = Annotated[
    list[str] | None, _list("--only", "CHECKS", "Run only these checks: p2p,allreduce", WHAT, complete.names_of_checks)
]
SkipOption = Annotated[
    list[str] | None, _list("--skip", "CHECKS", "Leave these checks out: p2p,allreduce", WHAT, complete.names_of_checks)
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODULE:FACTORY",
        rich_help_panel=WHAT,
        help="A model of yours to test as well: what FACTORY() of MODULE returns is the model, (model, make_batch)"
        " or a dict with model, make_batch(step), loss(output, batch) and ddp, the options of DDP."
        " Your code runs on the ranks.",
    ),
]
RedactOption = Annotated[
    bool,
    typer.Option(
        "--redact",
        rich_help_panel=UNDER_OUTPUTS,
        help="Replace names of hosts, users, addresses, paths and serial numbers, to show the result to others.",
    ),
]
RequireGpusOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", rich_help_panel=VERDICT, help="Sick unless the job may use at least N GPUs."),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=VERDICT,
        help="Hold what is measured against healthy runs: a file of fleet --write-baseline.",
    ),
]
NodeGpusOption = Annotated[
    int | None,
    typer.Option(
        "--require-gpus",
        min=0,
        metavar="N",
        rich_help_panel=VERDICT,
        help="Sick unless the node has at least N GPUs, its job's or not.",
    ),
]

# torchrun's own, with its names, meanings and PET_* variables
NnodesOption = Annotated[
    str,
    typer.Option(
        envvar="PET_NNODES",
        metavar="N|MIN:MAX",
        rich_help_panel=WHERE,
        help="Nodes, at most MAX; by default all that SLURM, mpirun or torchrun has, else this one.",
    ),
]
NprocOption = Annotated[
    str,
    typer.Option(
        envvar="PET_NPROC_PER_NODE",
        metavar="auto|gpu|cpu|N",
        rich_help_panel=WHERE,
        help="Ranks on each node; auto is one a GPU, or 2 on CPUs; cpu one a CPU.",
    ),
]
NodeRankOption = Annotated[
    int | None,
    typer.Option(
        envvar="PET_NODE_RANK", metavar="R", rich_help_panel=WHERE, help="This node's number; the head's is 0."
    ),
]
EndpointOption = Annotated[
    str,
    typer.Option(
        envvar="PET_RDZV_ENDPOINT",
        metavar="HOST[:PORT]",
        rich_help_panel=WHERE,
        help="Where the nodes meet: the head and a free port of it (29400).",
    ),
]
MasterAddrOption = Annotated[
    str,
    typer.Option(
        envvar="PET_MASTER_ADDR", metavar="HOST", rich_help_panel=WHERE, help="The head, as torchrun names it."
    ),
]
MasterPortOption = Annotated[
    int | None,
    typer.Option(envvar="PET_MASTER_PORT", metavar="PORT", rich_help_panel=WHERE, help="The head's port (29500)."),
]

HostsOption = Annotated[
    str | None,
    typer.Option(metavar="A,B", rich_help_panel=WHERE, help="Start on these hosts over ssh; the first is the head."),
]
HostfileOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", rich_help_panel=WHERE, help="Start on the hosts in this file over ssh, one on each line."
    ),
]
JoinTimeoutOption = Annotated[
    float, typer.Option(min=1.0, metavar="SECONDS", rich_help_panel=TIME, help="Time for all nodes to report in.")
]
_FormatOption = Annotated[
    OutputFormat,
    typer.Option(
        "--output-format",
        rich_help_panel=UNDER_OUTPUTS,
        help="How findings are printed: full, one line each, as annotations of GitHub Actions, or one JSON"
        " object a line for log collectors.",
    ),
]


_SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--settings",
        metavar="FORM:PATH|-",
        autocompletion=complete.forms_of_settings,
        rich_help_panel=UNDER_OUTPUTS,
        help="Write the recommended settings (repeatable), by FORM: "
        + "; ".join(f"{output.name}, {output.help}" for output in FORMS)
        + ".",
    ),
]


def names(given: list[str] | None) -> tuple[str, ...]:
    """``--only p2p,allreduce --only buffers``: all the names."""
    return tuple(name.strip() for text in given or () for name in text.split(","))


_JUDGE = ("run", "prolog", "replay", "topology", "env", "logs", "attach", "fleet", "compare")


def reported(command: Callable[..., int | None]) -> Callable[..., None]:
    """Common to all commands: an error ends in one sentence, and the returned number is the exit code.

    A parameter ``outputs`` is replaced by one option for each output of the command, and by --output-format: typer
    reads the signature.
    """
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

    signature, parameters = inspect.signature(command), []
    for parameter in signature.parameters.values():
        if parameter.name == "outputs":
            parameters.append(
                parameter.replace(name="output_format", default=OutputFormat.FULL, annotation=_FormatOption)
            )
            parameters += [
                parameter.replace(name=name, default=False, annotation=option)
                for name, option in (("verbose", VerboseOption), ("quiet", QuietOption))
                if judges
            ]
            options = {_name_of(output): _option(output) for output in offered}
            parameters += [
                parameter.replace(name=name, default=None, annotation=option) for name, option in options.items()
            ]
            if command.__name__ in REDACTABLE:
                parameters.append(parameter.replace(name="redact", default=False, annotation=RedactOption))
        else:
            parameters.append(parameter)
    with_outputs.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect reads it
    return with_outputs


def _detail(*, verbose: bool, quiet: bool) -> Detail:
    """How much to print. Raises UsageError."""
    if verbose and quiet:
        raise UsageError("--verbose and --quiet contradict each other: give one")
    return Detail.VERDICT if quiet else Detail.ALL if verbose else Detail.SCREEN


def _name_of(output: Output) -> str:
    return "settings" if output.is_form else output.name


def _option(output: Output) -> Any:
    if output.is_form:
        return _SettingsOption
    return Annotated[
        str | None, typer.Option(output.option, metavar="PATH|-", rich_help_panel=UNDER_OUTPUTS, help=output.help)
    ]
