"""Ranks of an outer launcher that are not their node's agent: they wait for its exit code, bounded.

The agent holds a lock on a file while it lives and writes its code there. A waiting rank that gets the
lock and finds no code knows that the agent is gone. The file stays for ranks that come late; a file of an
earlier launch is recognised by its age.
"""

import fcntl
import itertools
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from ddp_doctor.starters.detect import OuterWorld

#: For the agent to appear; the ranks of one launch start within seconds of each other.
_APPEAR_S = 30.0
#: A file last written longer than this before a waiter started is of an earlier launch.
_FRESH_S = 60.0
#: For the lock; waiting ranks hold it for microseconds to see whether the agent lives.
_LOCK_S = 5.0
#: Files of launches that ended long ago.
_FORGOTTEN_S = 86400.0
#: Those of agents, and of ranks that were killed (local_ranks.py).
_KINDS = ("*.agent", "*.rank", "*.rank.*.new")


class AgentLock:
    """Held by the agent of an outer world from start to end; ``folder`` is this user's alone.

    An agent that cannot get the lock tests all the same; the others then give up, unsure.
    """

    def __init__(self, world: OuterWorld, folder: Path) -> None:
        _remove_forgotten(folder)
        self._fd: int | None = None
        with suppress(OSError):
            self._fd = _locked(_path(world, folder))

    def tell(self, code: int) -> None:
        """Hand the exit code to the waiting ranks."""
        if self._fd is not None:
            with suppress(OSError):
                os.pwrite(self._fd, f"agent\n{code}\n".encode(), 0)


def wait_for_agent(world: OuterWorld, folder: Path, timeout_s: float) -> int | None:
    """The agent's exit code; None when it never came, died, or did not end within the time."""
    path = _path(world, folder)
    started, oldest = time.monotonic(), time.time() - _FRESH_S
    while time.monotonic() - started < timeout_s:
        words = _words_in(path, oldest)
        held = _is_held(path)  # asked after the file was read: an agent has the lock before it writes
        if len(words) == 1 and not held:
            words = _words_in(path, oldest)
            if len(words) < 2:
                return None
        if len(words) > 1:
            return int(words[1]) if words[1].isdigit() else None
        if not held and time.monotonic() - started > _APPEAR_S:
            return None
        time.sleep(0.05)
    return None


def file_stem(world: OuterWorld) -> str:
    """How the names of all files of one launch begin."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", world.key)[-120:]


def _path(world: OuterWorld, folder: Path) -> str:
    return str(folder / f"{file_stem(world)}.agent")


def _locked(path: str) -> int | None:
    """The file, locked and marked as the agent's; None where another process keeps the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    started = time.monotonic()
    while time.monotonic() - started < _LOCK_S:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"agent\n", 0)
            return fd
        time.sleep(0.01)
    os.close(fd)
    return None


def _remove_forgotten(folder: Path) -> None:
    for path in itertools.chain.from_iterable(map(folder.glob, _KINDS)):
        with suppress(OSError):
            if path.lstat().st_mtime < time.time() - _FORGOTTEN_S:
                path.unlink()


def _words_in(path: str, oldest: float) -> list[str]:
    """The words in the file, none if it was last written before ``oldest`` (seconds since the epoch)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, encoding="ascii", errors="replace") as file:
            return file.read(100).split() if os.fstat(fd).st_mtime >= oldest else []
    except OSError:
        return []


def _is_held(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
