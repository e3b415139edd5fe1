"""The command line with all its commands, from its start to the exit code."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from ddp_doctor.cli import before_a_job, complete, earlier_runs, reference
from ddp_doctor.cli.options import app
from ddp_doctor.model.choices import ExitCode

#: A class of click, or of typer since it includes click.
_USAGE_ERROR: Any = typer.BadParameter.__base__

__all__ = ["app", "before_a_job", "earlier_runs", "entry", "reference"]


def entry(at_the_end: Callable[[], object] = lambda: None) -> NoReturn:
    """Run the command, then ``at_the_end``, and leave at once: a thread stuck in a driver must not keep the process."""
    code = ExitCode.UNSURE.value  # also if an import fails: a broken ddp-doctor does not make a node unhealthy
    try:
        complete.prepare()
        code = app(standalone_mode=False)
    except _USAGE_ERROR as error:
        code = ExitCode.USAGE.value
        from ddp_doctor.cli.usage_errors import report_usage_error

        report_usage_error(error)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else ExitCode.UNSURE.value
        if isinstance(leaving.code, str):  # a module that was imported ended the program with its own words
            sys.stderr.write(
                f"ddp-doctor: an imported module exited with this message, so the verdict is unsure: {leaving.code}\n"
            )
    except Exception:  # noqa: BLE001 - outside of a command's own handler only imports of these modules can fail
        sys.stderr.write(
            "ddp-doctor: internal error, so the verdict is unsure; please report it with this"
            f" traceback:\n{traceback.format_exc()}"
        )
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a full disk, which cannot be reported
            code = code or ExitCode.UNSURE.value
    if "ddp_doctor.sources.commands" in sys.modules:  # otherwise no process was started
        from ddp_doctor.ranks.process import kill_stopped_children

        kill_stopped_children()
    at_the_end()
    os._exit(code)
