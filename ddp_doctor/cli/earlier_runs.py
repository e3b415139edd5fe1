"""The command ``replay`` for earlier runs; it imports its code when it is called."""

from pathlib import Path
from typing import Annotated

import typer

from ddp_doctor.cli.help import INPUT
from ddp_doctor.cli.options import IgnoreOption, command, option
from ddp_doctor.cli.outputs import Outputs


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
