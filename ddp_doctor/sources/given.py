"""Texts that a user names: a file, a pipe, or stdin; limited in size and in waiting time."""

import os
import select
import stat
import sys
from pathlib import Path

from ddp_doctor.model.error_text import quoted

#: Topologies of thousands of hosts are some megabytes.
MOST_BYTES = 64 * 1024 * 1024
_MOST_BYTES_OF_A_DEVICE = 8 * 1024 * 1024
#: A slow host has answered by then; a host that hangs never answers.
SILENCE_S = 60.0


class CannotRead(Exception):
    """A given text could not be read. The message is one sentence for people."""


def is_folder(path: Path | str) -> bool:
    """Return True for a visible directory; False in an inaccessible directory or for a name that is too long."""
    return os.path.isdir(path)  # noqa: PTH112 - that of Path raises OSError there


def read_given(path: str, *, most_bytes: int = MOST_BYTES, silence_s: float = SILENCE_S) -> bytes:
    """Return the bytes of a file, or of stdin for ``-``. Raises CannotRead."""
    try:
        if path == "-":
            return _read(sys.stdin.fileno(), "stdin", most_bytes, silence_s)
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _read(descriptor, path, most_bytes, silence_s)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CannotRead(f"cannot read {quoted(path)}: {error.strerror}") from error
    except ValueError as error:
        raise CannotRead(f"cannot read {quoted(path)}: {error}") from error


def path_beside(path: str, name: str) -> str | None:
    """Return the path of a file that ``path`` names, relative to its directory or to the working directory; or None."""
    for folder in (Path(path).parent, Path()):
        try:
            if folder.resolve() in (folder / name).resolve().parents and (folder / name).is_file():
                return str(folder / name)
        except (OSError, ValueError, RuntimeError):  # an inaccessible directory, a null byte, a loop of links
            continue
    return None


def read_beside(path: str, name: str, most_bytes: int) -> str | None:
    """Return the text of a file that ``path`` names, or None if it is missing, too large or not text."""
    try:
        found = path_beside(path, name)
        return read_given(found, most_bytes=most_bytes).decode() if found else None
    except (CannotRead, OSError, ValueError):
        return None


def _read(descriptor: int, name: str, most_bytes: int, silence_s: float) -> bytes:
    data = bytearray()
    if stat.S_ISCHR(os.fstat(descriptor).st_mode):  # /dev/zero never ends
        most_bytes = min(most_bytes, _MOST_BYTES_OF_A_DEVICE)
    while len(data) <= most_bytes:
        # A person who pastes into a terminal may take their time.
        if not os.isatty(descriptor) and not select.select([descriptor], [], [], silence_s)[0]:
            raise CannotRead(f"cannot read {quoted(name)}: no data for {silence_s:g} s")
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return bytes(data)
        data += chunk
    raise CannotRead(
        f"cannot read {quoted(name)}: it is larger than {most_bytes >> 20} MiB, the size limit for this input"
    )
