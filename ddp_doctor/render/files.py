"""Write outputs atomically: to a temporary file next to the target, which is then renamed."""

import errno
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from ddp_doctor.model.error_text import quoted


class CannotWrite(Exception):
    """An output could not be written; the message is one sentence for people."""


def require_writable(target: str) -> None:
    """Check that ``write`` would work, without leaving files behind. Raises CannotWrite."""
    path = Path(target)
    if target == "-":
        return
    try:
        if not target or target.endswith("/") or path.is_dir():
            what = "it is a directory" if target and path.is_dir() else "the path has no file name"
            raise CannotWrite(f"cannot write {quoted(target)}: {what}; add a file name")
        if path.exists() and not path.is_file():
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        Path(temporary).unlink()
    except (OSError, ValueError) as error:
        raise CannotWrite(f"cannot write {quoted(target)}: {getattr(error, 'strerror', error)}") from error


def write(target: str, text: str, *, mode: int | None = None) -> None:
    """Write ``text`` to a path, or to stdout for ``-``; ``mode`` None: by the umask. Raises CannotWrite."""
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path, temporary = Path(target), ""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # /dev/stdout, a pipe: nothing to rename
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if mode is None:
            umask = os.umask(0o022)
            os.umask(umask)
            mode = 0o666 & ~umask
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except OSError as error:
        with suppress(OSError):
            Path(temporary).unlink()
        raise CannotWrite(f"cannot write {quoted(target)}: {error.strerror}") from error
