"""Folders of the doctor's own under a predictable name: root never writes where another user waits for it."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def private_folder(path: Path) -> Path | None:
    """``path``, made with mode 0700 where it was missing; None unless nobody else can write there.

    Ours is a real directory (no symbolic link), owned by this user, not writable for group and others.
    The folders above ``path`` are made where they are missing and taken as they are.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return path if ours and not found.st_mode & 0o022 else None
