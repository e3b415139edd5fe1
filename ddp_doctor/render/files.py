"""Writing outputs whole: a temporary file beside the target, then a rename."""

import errno
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path


class CannotWrite(Exception):
    """An output could not be written; the message is one sentence for people."""


def require_writable(target: str) -> None:
    """Try what ``write`` would do, and leave nothing behind. Raises CannotWrite."""
    path = Path(target)
    if target == "-":
        return
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        Path(temporary).unlink()
    except (OSError, ValueError) as error:
        raise CannotWrite(f"cannot write {target}: {getattr(error, 'strerror', error)}") from error


def write(target: str, text: str, *, mode: int | None = None) -> None:
    """Write ``text`` to a path, or to stdout for ``-``; ``mode`` None: as the umask says. Raises CannotWrite."""
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target)
    if path.exists() and not path.is_file():
        _write_through(path, text)  # /dev/stdout, a pipe: nothing to rename
        return
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o666 & ~_umask() if mode is None else mode)
        Path(temporary).replace(path)
    except OSError as error:
        with suppress(OSError):
            Path(temporary).unlink()
        raise CannotWrite(f"cannot write {target}: {error.strerror}") from error


def _write_through(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}") from error


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
