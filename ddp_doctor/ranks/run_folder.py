"""The run folder of a run, and those that runs before it left because they were killed.

A note in each says on which boot of which machine it was made, and its run holds a lock on it while it lives::

    {"boot": "4f1c…"}

The kernel lets go of the lock however the run ends, and one kernel has all containers of a host, so a note that can
be locked is that of a run which is gone.
"""

import fcntl
import json
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ddp_doctor.ranks import job_folders

#: In each folder; only its own run ever holds the lock on it for long.
NOTE = "owner.lock"
_PREFIX = "ddp-doctor-"
#: Swept at the start of one run: it is to be fast, and the next sweeps on.
_MOST = 100


def make() -> Path:
    """A new folder for this process alone. What killed runs left beside it is removed."""
    # A socket lives in it, and the path of a socket holds 107 characters.
    parent = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp")
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    _hold(folder)
    return folder


def _hold(folder: Path) -> None:
    """Locked before it has its name, so that nobody finds it free. It is never closed: the run's end does that."""
    note = folder / f".{NOTE}"
    fd = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a file system without locks; then nobody else gets this one either
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(fd, json.dumps(_here()).encode())
    note.rename(folder / NOTE)


def _sweep(parent: Path) -> None:
    left = _MOST
    with suppress(OSError):
        for folder in sorted(parent.glob(f"{_PREFIX}*")):
            held = _taken(folder) if left else None
            if held is not None:
                left -= 1
                for trial in folder.glob("t*"):
                    job_folders.remove(trial)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


def _taken(folder: Path) -> int | None:
    """The lock on a folder of this user whose run is known to be gone, else None.

    Of another host that shares the folder, or of an earlier boot, nothing is known.
    """
    fd = -1
    with suppress(OSError, ValueError):
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and found.st_mode & 0o7777 == 0o700:
            fd = os.open(folder / NOTE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if json.loads(os.read(fd, 1000)) == _here():
                return fd
    if fd >= 0:
        os.close(fd)
    return None


def _here() -> dict[str, str]:
    return {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
