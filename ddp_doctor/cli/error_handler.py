"""The error handler of all commands, and messages on stderr."""

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shutil import get_terminal_size

from ddp_doctor import __version__
from ddp_doctor.features import CannotLoad
from ddp_doctor.model.choices import ExitCode, UsageError
from ddp_doctor.render.layout import folded
from ddp_doctor.render.text import plain

#: A full disk, or an exhausted quota.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def error_handler() -> Iterator[None]:
    """Handle all errors of a command: one sentence and exit 2, or a saved trace and exit 3."""
    try:
        yield
    except CannotLoad as error:
        print_to_stderr(f"ddp-doctor: {error}")
        raise SystemExit(ExitCode.UNSURE.value) from None
    except UsageError as error:
        print_to_stderr(f"ddp-doctor: {error}")
        raise SystemExit(ExitCode.USAGE.value) from None
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED.value) from None
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise SystemExit(_failed()) from None
        print_to_stderr(
            f"ddp-doctor: cannot write the output: {error.strerror}; free some space, or write to another file system"
        )
        raise SystemExit(ExitCode.USAGE.value) from None
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 - nothing is above this; a panic of pydantic's core is no Exception
        raise SystemExit(_failed()) from None


def _failed() -> int:
    print_to_stderr(f"ddp-doctor: internal error, so the verdict is unsure; {keep_trace(traceback.format_exc())}")
    return ExitCode.UNSURE.value


def keep_trace(trace: str) -> str:
    """Write the trace to a file and return how to report it; if that fails, the text contains the trace itself."""
    text = f"ddp-doctor {__version__}, Python {sys.version}\n{' '.join(sys.argv)}\n\n{trace}"
    try:
        handle, path = tempfile.mkstemp(prefix="ddp-doctor-crash-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        return f"please report it with this traceback, which could not be saved to a file:\n{text}"
    return f"please report it with the traceback in {path}"


def print_to_stderr(sentence: str) -> None:
    """Print one line on stderr, broken between words on a terminal; if stderr is closed, drop it."""
    with suppress(OSError, ValueError, AttributeError):  # it may also be None
        width = get_terminal_size().columns if sys.stderr.isatty() else None
        lines = [folded(line, width, hang=4) for line in plain(sentence).split("\n")]
        sys.stderr.write("\n".join(lines) + "\n")
