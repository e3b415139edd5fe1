"""The Python files that a user names: files as they are, folders walked, ``-`` for what comes on stdin."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_doctor.parse.text import as_utf8
from ddp_doctor.sources.given import CannotRead, is_folder, read_given

#: Folders that hold no code of the user's.
_NOT_WALKED = ("__pycache__", "node_modules", "build", "dist", "site-packages", "venv", "env")
#: What ``python -m venv`` and virtualenv leave in a folder.
_ENVIRONMENT = "pyvenv.cfg"


@dataclass(frozen=True)
class ScriptFile:
    """One file, under its ``shown_path``: its bytes, or why they could not be had."""

    path: str
    data: bytes = b""
    reason: str = ""


def script_paths(given: Sequence[str]) -> Iterator[str]:
    """Each path once, in the order given; of a folder all ``*.py`` below it, by name."""
    seen = set[str]()
    for name in given:
        path = name if name == "-" else str(Path(name))  # ./train.py is train.py
        below = _walk(path, set()) if path != "-" and is_folder(path) else [path]
        for script in (path.removeprefix("./") for path in below):
            if script not in seen:
                seen.add(script)
                yield script


def _walk(folder: str, above: set[tuple[int, int]]) -> Iterator[str]:
    """The scripts of a folder; a link that leads back to a parent folder is not followed again."""
    try:
        status = Path(folder).stat()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield folder  # reading it will say why
        return
    here = (status.st_dev, status.st_ino)
    if here in above or (above and any(entry.name == _ENVIRONMENT for entry in entries)):
        return
    for entry in entries:
        if entry.is_dir():
            if not entry.name.startswith(".") and entry.name not in _NOT_WALKED:
                yield from _walk(entry.path, above | {here})
        elif entry.name.endswith(".py") and entry.is_file():  # an editor's lock is a link that leads nowhere
            yield entry.path


def shown_path(path: str) -> str:
    """A path as reports have it: stdin by its name, and nothing that JSON cannot hold."""
    return "<stdin>" if path == "-" else as_utf8(path)


def read_script(path: str, most_bytes: int) -> ScriptFile:
    """One file; of a larger one ``most_bytes`` and one byte more, which shows that it is too large."""
    shown = shown_path(path)
    try:
        if path != "-" and Path(path).is_file() and Path(path).stat().st_size > most_bytes:
            with Path(path).open("rb") as file:
                return ScriptFile(shown, file.read(most_bytes + 1))
        return ScriptFile(shown, read_given(path))
    except OSError as error:
        return ScriptFile(shown, reason=f"cannot read {shown}: {error.strerror}")
    except (CannotRead, ValueError) as error:
        return ScriptFile(shown, reason=as_utf8(str(error)))
