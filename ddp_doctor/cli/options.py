"""The command line and the options that several commands share.

before_a_job, earlier_runs and reference add their commands to it. help.py loads the commands of features.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import Annotated, Any

import typer

from ddp_doctor import __version__
from ddp_doctor.cli import complete
from ddp_doctor.cli.help import CHECKS, JUDGED, NODES, VERDICT, Command, Commands, epilog, has_short_help, help_all
from ddp_doctor.cli.help import OUTPUTS as UNDER_OUTPUTS
from ddp_doctor.cli.outputs import FORMS, Outputs, is_redactable, offered_by, paths_of_forms
from ddp_doctor.features import FEATURES
from ddp_doctor.model.choices import Detail, FailOn, OutputFormat, UsageError

app = typer.Typer(
    name="ddp-doctor",
    cls=Commands,
    help="Test a PyTorch distributed job's nodes before it starts, and find out why a job hangs, fails or is slow.",
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
        bool, typer.Option("--version", "-V", is_eager=True, callback=_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle the options of the group."""


def option(
    panel: str,
    metavar: str | None,
    words: str,
    *flags: str,
    env: str | None = None,
    min: float | None = None,  # noqa: A002  typer's name for it
    completed: Callable[[str], list[str]] | None = None,
) -> Any:
    """Return an option under a heading of the help; ``env`` is the variable that also sets it."""
    return typer.Option(
        *flags, rich_help_panel=panel, metavar=metavar, help=words, envvar=env, min=min, autocompletion=completed
    )


_VerboseOption = Annotated[
    bool, option(UNDER_OUTPUTS, None, "Print every check and the reason for its result.", "--verbose", "-v")
]
_QuietOption = Annotated[
    bool, option(UNDER_OUTPUTS, None, "Print only the findings and the verdict, without progress.", "--quiet", "-q")
]
FailOnOption = Annotated[FailOn, option(VERDICT, None, "Minimum severity that fails the run.")]
IgnoreOption = Annotated[
    list[str] | None,
    option(
        VERDICT,
        "CODES",
        "Ignore rules by code or code prefix, for example DD305,DD4. Repeatable.",
        completed=complete.codes,
    ),
]
SkipOption = Annotated[
    list[str] | None,
    option(
        CHECKS,
        "CHECKS",
        "Skip these checks, for example p2p,allreduce. Repeatable.",
        completed=complete.names_of_checks,
    ),
]
_RedactOption = Annotated[
    bool,
    option(
        UNDER_OUTPUTS,
        None,
        "Replace host names, user names, addresses, paths and serial numbers in every output.",
        "--redact",
    ),
]
_HelpAllOption = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=help_all, help="Show all options, grouped by task, and exit."),
]
NodeGpusOption = Annotated[
    int | None,
    option(VERDICT, "N", "Fail if the node has fewer than N GPUs, counting GPUs hidden from the job.", min=0),
]

NprocOption = Annotated[
    str,
    option(
        NODES,
        "auto|gpu|cpu|N",
        "Ranks per node: auto (one per GPU, or 2 without GPUs), gpu (one per GPU), cpu (one per CPU) or N.",
        env="PET_NPROC_PER_NODE",
    ),
]

HostsOption = Annotated[str | None, option(NODES, "A,B", "Hosts to start on over ssh, the head node first.")]
HostfileOption = Annotated[str | None, option(NODES, "FILE", "File with the hosts to start on over ssh, one per line.")]
_FormatOption = Annotated[
    OutputFormat,
    option(
        UNDER_OUTPUTS,
        None,
        "Format of the findings: full, concise (one line each), github (annotations for GitHub Actions) or jsonl"
        " (one JSON object per line).",
    ),
]


_FORMS = [output.name for output in FORMS]
_SettingsOption = Annotated[
    list[str] | None,
    option(
        UNDER_OUTPUTS,
        "FORM:PATH|-",
        f"Write the recommended settings to PATH in this form: {', '.join(_FORMS[:-1])} or {_FORMS[-1]}. Repeatable.",
        completed=complete.forms_of_settings,
    ),
]


def command(
    *examples: str, exits: str = JUDGED, of: typer.Typer = app, **context_settings: Any
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Add a function to a command line; it returns the exit code, and its errors become one sentence.

    Typer reads the signature, so a parameter ``outputs`` is replaced by one option per output of the command, and a
    parameter ``typed`` by the fields of its dataclass.
    """

    def decorate(function: Callable[..., int | None]) -> Callable[..., None]:
        below = epilog(*examples, exits=exits)
        summary = FEATURES[name].summary if (name := function.__name__) in FEATURES else None
        added = of.command(cls=Command, help=summary, epilog=below, context_settings=context_settings)
        return added(_reported(function))

    return decorate


def _reported(command: Callable[..., int | None]) -> Callable[..., None]:
    offered = offered_by(command.__name__)
    signature = inspect.signature(command)
    has_detail = bool(offered) and "quiet" not in signature.parameters
    typed = signature.parameters["typed"].annotation if "typed" in signature.parameters else None
    fields_typed = fields(typed) if typed else ()

    @wraps(command)
    def with_outputs(**given: Any) -> None:
        from ddp_doctor.cli.error_handler import error_handler  # --version and --help need neither

        named = [output.name for output in offered if not output.is_form]
        paths = {name: path for name in named if (path := given.pop(name)) is not None}
        given.pop("help_all", None)
        forms = given.pop("settings", None) or ()
        if typed:
            given["typed"] = typed(**{field.name: given.pop(field.name) for field in fields_typed})
        with error_handler():
            if offered:
                paths |= paths_of_forms(forms)
                outputs = Outputs(paths, form=given.pop("output_format"), redact=given.pop("redact", False))
                if has_detail:
                    detail = _detail(verbose=given.pop("verbose"), quiet=given.pop("quiet"))
                    outputs = replace(outputs, detail=detail)
                given["outputs"] = outputs
                outputs.require_redactable()
                outputs.refuse_unwritable()
            code = command(**given)
        raise typer.Exit(code or 0)

    of_outputs: dict[str, tuple[Any, object]] = {"output_format": (_FormatOption, OutputFormat.FULL)}
    if has_detail:
        of_outputs |= {"verbose": (_VerboseOption, False), "quiet": (_QuietOption, False)}
    for output in offered:
        written = Annotated[str | None, option(UNDER_OUTPUTS, "PATH|-", output.help, output.option)]
        of_outputs["settings" if output.is_form else output.name] = (
            _SettingsOption if output.is_form else written,
            None,
        )
    if is_redactable(command.__name__):
        of_outputs["redact"] = (_RedactOption, False)
    if has_short_help(command.__name__):
        of_outputs["help_all"] = (_HelpAllOption, False)
    stand_for = {"outputs": of_outputs, "typed": {field.name: (field.type, field.default) for field in fields_typed}}
    parameters = []
    for parameter in signature.parameters.values():
        options = stand_for.get(parameter.name, {parameter.name: (parameter.annotation, parameter.default)})
        parameters += [
            parameter.replace(name=name, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
        ]
    with_outputs.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect reads it
    return with_outputs


def _detail(*, verbose: bool, quiet: bool) -> Detail:
    """Return the amount of output. Raises UsageError."""
    if verbose and quiet:
        raise UsageError("--verbose and --quiet are mutually exclusive; give one of them")
    return Detail.VERDICT if quiet else Detail.ALL if verbose else Detail.SCREEN
