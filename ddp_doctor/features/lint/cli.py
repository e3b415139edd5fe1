"""The command ``lint``; it imports its code when it is called."""

from typing import Annotated

import typer

from ddp_doctor.cli.help import OUTPUTS, VERDICT
from ddp_doctor.cli.options import FailOnOption, IgnoreOption, command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import FailOn

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command("ddp-doctor lint train.py job.sbatch", "ddp-doctor lint src --select DDL1 --output-format github", of=app)
def lint(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|DIR|-...",
            help="Python scripts, job scripts, manifests, directories of Python scripts, or - for stdin.",
        ),
    ],
    select: Annotated[
        list[str] | None,
        option(VERDICT, "CODES", "Apply only rules with these codes or code prefixes, for example DDL12. Repeatable."),
    ] = None,
    ignore: IgnoreOption = None,
    fail_on: FailOnOption = FailOn.ERROR,
    *,
    outputs: Outputs,
    quiet: Annotated[bool, option(OUTPUTS, None, "Print only errors and warnings.", "--quiet", "-q")] = False,
) -> int:
    """Check the files and show the findings."""
    from ddp_doctor.features.lint import use_case

    return use_case.lint(files, outputs, quiet=quiet, select=select or (), ignore=ignore or (), fail_on=fail_on)
