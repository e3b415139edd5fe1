"""The scratch folder of a run, and those that runs before it left because they were killed.

A note in each tells whose it is::

    {"host": "node1", "boot": "4f1c…", "pid_namespace": "pid:[4026531836]", "pid": 712, "started": 88213}
"""

import json
import os
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ddp_doctor.launch import elsewhere
from ddp_doctor.launch.process import started

_PREFIX = "ddp-doctor-"
_NOTE = "owner.json"
#: Swept at the start of one run: it is to be fast, and the next sweeps on.
_MOST = 100


def make() -> Path:
    """A new folder for this process alone. What killed runs left beside it is removed."""
    # A socket lives in it, and the path of a socket holds 107 characters.
    parent = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp")
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    (folder / _NOTE).write_text(json.dumps(_owner(os.getpid())))
    return folder


def _sweep(parent: Path) -> None:
    with suppress(OSError):
        left = [folder for folder in sorted(parent.glob(f"{_PREFIX}*")) if _is_abandoned(folder)]
        for folder in left[:_MOST]:
            for trial in folder.glob("t*"):
                elsewhere.remove(trial)
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether it is this user's, and its process is known to be gone.

    Of another host that shares the folder, another container or an earlier boot nothing is known.
    """
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o7777 != 0o700:
            return False
        said = json.loads((folder / _NOTE).read_text())
        now = _owner(int(said["pid"]))
        return (
            all(said[key] == now[key] for key in now if key != "started")
            and said["started"] != now["started"]
        )
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _owner(pid: int) -> dict[str, object]:
    return {
        "host": socket.gethostname(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "pid": pid,
        "started": started(pid),
    }
