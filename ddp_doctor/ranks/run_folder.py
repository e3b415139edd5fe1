"""The temporary folder of a run, and those that killed runs have left.

A note in each folder names the boot in which it was made; its run holds a lock on the note while it lives::

    {"boot": "4f1c…"}

The kernel releases the lock however the run ends, and all containers of a host share one kernel, so a note that
can be locked belongs to a run that is gone.
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

#: The note in each folder; only its own run holds the lock on it for long.
NOTE = "owner.lock"
_PREFIX = "ddp-doctor-"
#: The most folders that one start removes: it has to be fast, and the next run continues.
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
    """Lock the note before it has its name, so that nobody finds it unlocked. The end of the process closes it."""
    note = folder / f".{NOTE}"
    fd = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a file system without locks: then no other run gets this lock either
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

    Nothing is known about runs of another host that shares the folder, or of an earlier boot.
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
