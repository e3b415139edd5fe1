"""Ranks of a foreign world that are not their node's agent: they wait for its exit code, bounded.

The agent holds a lock on a file while it lives and writes its code there; a waiter that gets the
lock and finds no code knows that the agent is gone.
"""

import fcntl
import os
import re
import time
from pathlib import Path

from ddp_doctor.launch.detect import ForeignWorld

#: For the agent to appear; the ranks of one launch start within seconds of each other.
_APPEAR_S = 30.0


class AgentLock:
    """Held by the agent of a foreign world from start to end."""

    def __init__(self, world: ForeignWorld, folder: Path) -> None:
        self._fd = os.open(_path(world, folder), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"agent\n", 0)

    def tell(self, code: int) -> None:
        """Hand the exit code to the waiting ranks."""
        os.pwrite(self._fd, f"agent\n{code}\n".encode(), 0)


def wait_for_agent(world: ForeignWorld, folder: Path, timeout_s: float) -> int | None:
    """The agent's exit code; None when it never came, died, or did not end within the time."""
    path = _path(world, folder)
    started = time.monotonic()
    while time.monotonic() - started < timeout_s:
        said = _said(path)
        if len(said) > 1:
            return int(said[1])
        if said and not _is_held(path):
            said = _said(path)
            return int(said[1]) if len(said) > 1 else None
        if not said and time.monotonic() - started > _APPEAR_S:
            return None
        time.sleep(0.05)
    return None


def _path(world: ForeignWorld, folder: Path) -> str:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder / (re.sub(r"[^A-Za-z0-9_.-]", "_", world.key)[:120] + ".agent"))


def _said(path: str) -> list[str]:
    try:
        return Path(path).read_text().split()
    except OSError:
        return []


def _is_held(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
