"""The directories of a run: the run directory, directories left by killed runs, and directories made for the job.

Each directory contains a note with the boot in which it was made. The run that made it holds a lock on the note::

    {"boot": "4f1c…"}

The kernel releases the lock however the run ends, and all containers of a host share one kernel. So if a note can be
locked, its run is over.

Ranks also make directories outside the run directory, where the job would write. They are noted first, and the agent
removes them.

A killed rank cannot remove anything. So before it makes a directory, it notes the path in the trial's directory, one
path per file ``rank0.job_folder``. The agent removes these directories after the ranks have ended, however they ended.
If the agent was also killed, a later run removes them together with the run directory.
"""

import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from ddp_doctor.model.choices import UsageError
from ddp_doctor.model.error_text import quoted

#: The note in each directory; only its own run holds the lock on it for long.
NOTE = "owner.lock"
_RUN_PREFIX = "ddp-doctor-"
#: Maximum number of directories that one start removes: it must be fast, and the next run continues.
_MOST_RUN_FOLDERS = 100
#: It contains a socket, and the path of a socket is limited to 107 characters.
_LONGEST_PARENT = 60
_SHORT_PARENT = "/tmp"


def make_run_folder() -> Path:
    """Create a directory for this process, and remove directories that killed runs left in the same place.

    Raises UsageError if no directory for temporary files is writable, as on a read-only root file system.
    """
    try:
        found = tempfile.gettempdir()
    except FileNotFoundError:  # its message only lists where Python searched
        found = os.environ.get("TMPDIR") or _SHORT_PARENT
    parent = Path(found if len(found) < _LONGEST_PARENT else _SHORT_PARENT)
    _sweep(parent)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_RUN_PREFIX, dir=parent))
        try:
            _hold(folder)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        short = f" whose path is shorter than {_LONGEST_PARENT} characters" if str(parent) != found else ""
        raise UsageError(
            f"cannot write to {quoted(parent)}: {error.strerror}; set TMPDIR to a writable directory{short}"
        ) from error
    return folder


def _hold(folder: Path) -> None:
    """Create the note and lock it before it gets its name, so no run finds it unlocked; the process's end closes it."""
    note = folder / f".{NOTE}"
    fd = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a file system without locks: then no other run gets this lock either
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with suppress(FileNotFoundError):  # no boot_id in /proc: other runs keep a directory without a boot
        os.write(fd, json.dumps(_here()).encode())
    note.rename(folder / NOTE)


def _sweep(parent: Path) -> None:
    left = _MOST_RUN_FOLDERS
    with suppress(OSError):
        for folder in sorted(parent.glob(f"{_RUN_PREFIX}*")):
            held = _taken(folder) if left else None
            if held is not None:
                left -= 1
                for trial in folder.glob("t*"):
                    remove_job_folders(trial)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


def _taken(folder: Path) -> int | None:
    """Return the lock on a directory of this user whose run is known to be over, or None.

    Nothing is known about runs of another host that shares the directory, or of an earlier boot.
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


_JOB_PREFIX = "ddp-doctor-job-"
_SUFFIX = ".job_folder"
#: A file system that hangs must not block the agent: directories not removed in this time are kept.
_WAIT_S = 2.0
_MOST_JOB_FOLDERS = 100


def make_job_folder(note: Path, parent: Path) -> str:
    """Create a directory in ``parent`` that other users cannot enter. Raises OSError, then without leftovers."""
    folder = parent.absolute() / f"{_JOB_PREFIX}{secrets.token_hex(8)}"
    note.with_suffix(_SUFFIX).write_text(str(folder))
    folder.mkdir(0o700)
    return str(folder)


def remove_job_folders(trial: Path) -> None:
    """Remove the directories noted by the ranks of a trial, if that takes only a moment."""
    with suppress(OSError):
        notes = sorted(trial.glob(f"*{_SUFFIX}"))[:_MOST_JOB_FOLDERS]
        if notes:
            worker = threading.Thread(target=_remove, args=(notes,), daemon=True, name="job-folders")
            worker.start()
            worker.join(_WAIT_S)


def _remove(notes: list[Path]) -> None:
    for note in notes:
        with suppress(OSError, ValueError):
            folder = Path(note.read_text())
            named = folder.is_absolute() and folder.name.startswith(_JOB_PREFIX)  # as named by make_job_folder
            if named and os.path.lexists(folder) and stat.S_ISDIR(folder.lstat().st_mode):  # and not a link to one
                shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                note.unlink()
