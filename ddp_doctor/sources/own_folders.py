"""Folders that are this user's alone: root never writes where another user could have prepared a trap.

They are known without the doctor's models, for what has to start fast.
"""

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddp_doctor.sources.given import is_folder


def state_folder(env: Mapping[str, str]) -> Path | None:
    """The folder of recordings, ``$XDG_STATE_HOME/ddp-doctor``; None where there is no home.

    A home that does not exist (/nonexistent, as services have it) is not made.
    """
    home = Path(env.get("HOME") or "")
    base = env.get("XDG_STATE_HOME") or (home / ".local/state" if is_folder(home) else "")
    return Path(base) / "ddp-doctor" if Path(base).is_absolute() else None


def private_folder(path: Path) -> Path | None:
    """``path``, made with mode 0700 where it was missing; None unless nobody else can write there.

    Ours is a real directory (no symbolic link), owned by this user, not writable for group and others.
    The folders above ``path`` are made where they are missing and taken as they are.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except OSError:
        return None
    return path if is_ours(path) else None


def own_bases(state: Path | None) -> list[Path]:
    """The folders in which the doctor may keep something, the best first."""
    temporary = temporary_folder()
    bases = (state, Path(temporary) / f"ddp-doctor-{os.getuid()}" if temporary else None)
    return [base for base in bases if base is not None]


def temporary_folder() -> str | None:
    """The folder for temporary files; None where they can go nowhere."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return None


def is_ours(path: Path) -> bool:
    """Whether this is a folder in which nobody else can put anything."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
