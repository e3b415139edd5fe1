"""Directories that only this user can write to, so root never writes where another user could have prepared a trap.

The module does not import ddp-doctor's models, because some of its users must start fast.
"""

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddp_doctor.sources.given import is_folder


def state_folder(env: Mapping[str, str]) -> Path | None:
    """Return the directory of recordings, ``$XDG_STATE_HOME/ddp-doctor``, or None without a home directory.

    A home directory that does not exist (/nonexistent, as for services) is not created.
    """
    home = Path(env.get("HOME") or "")
    base = env.get("XDG_STATE_HOME") or (home / ".local/state" if is_folder(home) else "")
    return Path(base) / "ddp-doctor" if Path(base).is_absolute() else None


def private_folder(path: Path) -> Path | None:
    """Return ``path``, created with mode 0700 if it is missing, or None if another user may write to it.

    A private directory is a real directory (not a symbolic link), owned by this user, and not writable for group and
    others. Missing directories above ``path`` are created. Existing ones are not checked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except OSError:
        return None
    return path if is_ours(path) else None


def own_bases(state: Path | None) -> list[Path]:
    """Return the directories that ddp-doctor may keep files in, the best first."""
    temporary = temporary_folder()
    bases = (state, Path(temporary) / f"ddp-doctor-{os.getuid()}" if temporary else None)
    return [base for base in bases if base is not None]


def temporary_folder() -> str | None:
    """Return the directory for temporary files, or None if there is none."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return None


def is_ours(path: Path) -> bool:
    """Return True for a directory that no other user can write to."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
