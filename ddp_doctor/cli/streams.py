"""Safe stdin, stdout and stderr: closed streams are replaced, and a reader that leaves does not affect the run.

``ddp-doctor run | head -1`` closes the pipe long before the verdict. The run continues, because other nodes depend on
it, files must be written, and its exit code is the verdict. Output without a reader is dropped.
"""

import errno
import io
import os
import sys
from typing import Any

#: A pipe or a socket without a reader; a terminal that was closed.
_NO_READER = (errno.EPIPE, errno.ECONNRESET, errno.EIO)


class _ReaderMayLeave(io.FileIO):
    """A stream's file, which becomes /dev/null when its reader has left."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NO_READER:
                raise
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())  # also for child processes
            os.close(nothing)
            return super().write(data)


def prepare() -> None:
    """Make stdin, stdout and stderr usable, whatever state ddp-doctor was started with."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _nothing("r" if name == "stdin" else "w"))
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _outliving_its_reader(stream))


def _nothing(mode: str) -> Any:
    """Return a stream in place of a closed one: otherwise a socket would get its number."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(nothing, True)  # child processes would have the same problem
    return os.fdopen(nothing, mode, encoding="utf-8")


def _outliving_its_reader(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return the same file; ``stream`` stays alive as ``sys.__stdout__``: collecting it would close the file."""
    raw = _ReaderMayLeave(stream.fileno(), "wb", closefd=False)
    is_unbuffered = isinstance(stream.buffer, io.RawIOBase)  # by python -u
    return io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="replace",  # a locale without the degree sign must not end the report
        line_buffering=stream.line_buffering,
        write_through=is_unbuffered,
    )
