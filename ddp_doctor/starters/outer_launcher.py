"""Ranks of an outer launcher that are not their node's agent: they give it their settings and wait for its end.

The agent holds a lock on a file while it lives and writes its exit code there. A waiting rank that gets the lock and
finds no code knows that the agent has died. The file stays for ranks that come late; a file of an earlier launch is
recognized by its age.

Each of the other ranks on the agent's node writes its settings to a file that it holds locked::

    torchrun-none_x7k2-attempt_0.3.rank    {"variables": {"NCCL_ALGO": "Tree"}, "withheld": []}

Only this user can access the directory. A file counts while its rank lives; a file that a killed rank left is ignored.
A rank that comes late, or never, has no settings here.
"""

import fcntl
import itertools
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ddp_doctor.facts.cluster import RankSettings, Settings
from ddp_doctor.model.fact import Reading
from ddp_doctor.probing.rank_identity import settings_of
from ddp_doctor.starters.detect import OuterWorld

#: For the agent to appear; the ranks of one launch start within seconds of each other.
_APPEAR_S = 30.0
#: A file last written longer than this before a waiter started is of an earlier launch.
_FRESH_S = 60.0
#: For the lock; waiting ranks hold it for microseconds to check whether the agent lives.
_LOCK_S = 5.0
#: Files of launches that ended long ago.
_FORGOTTEN_S = 86400.0
#: Files of agents, and of ranks that were killed.
_KINDS = ("*.agent", "*.rank", "*.rank.*.new")


class AgentLock:
    """A lock that the agent of an outer world holds from start to end, in a directory that only this user can access.

    An agent that cannot get the lock runs its tests in any case; the others then give up, unsure.
    """

    def __init__(self, world: OuterWorld, folder: Path) -> None:
        for path in itertools.chain.from_iterable(map(folder.glob, _KINDS)):
            with suppress(OSError):
                if path.lstat().st_mtime < time.time() - _FORGOTTEN_S:
                    path.unlink()
        self._fd: int | None = None
        with suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = _locked(os.open(_path(world, folder), flags, 0o600))

    def hand_over(self, code: int) -> None:
        """Write the exit code for the waiting ranks."""
        if self._fd is not None:
            with suppress(OSError):
                os.pwrite(self._fd, f"agent\n{code}\n".encode(), 0)


def wait_for_agent(world: OuterWorld, folder: Path, timeout_s: float) -> int | None:
    """Return the agent's exit code, or None if it never came, died, or did not end within the time."""
    path = _path(world, folder)
    started, oldest = time.monotonic(), time.time() - _FRESH_S
    while time.monotonic() - started < timeout_s:
        words = _words_in(path, oldest)
        held = _is_held(path)  # checked after the file was read: an agent has the lock before it writes
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
    """Return the prefix of the names of all files of one launch."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", world.key)[-120:]


def _path(world: OuterWorld, folder: Path) -> str:
    return str(folder / f"{file_stem(world)}.agent")


def _locked(fd: int) -> int | None:
    """Return the file, locked and marked as the agent's, or None if another process keeps the lock."""
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


def _words_in(path: str, oldest: float) -> list[str]:
    """Return the words in the file; empty if it was last written before ``oldest`` (seconds since the epoch)."""
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


#: The agent reads the files after it has read its node: ranks that started with it have written long before.
_PATIENCE_S = 0.5
#: Maximum size for one rank: no environment is longer (execve(2), MAX_ARG_STRLEN allows 128 KiB per variable).
_LONGEST = 1 << 20


@contextmanager
def settings_shared(world: OuterWorld, folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Keep this rank's settings in a file while it waits for its agent; it also waits if there is no file."""
    path, lock = folder / f"{file_stem(world)}.{world.local_rank}.rank", None
    with suppress(OSError):
        lock = _write_locked(path, settings_of(env).model_dump_json())
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                path.unlink()
            os.close(lock)


def readings(world: OuterWorld, folder: Path | None, env: Mapping[str, str]) -> tuple[Reading]:
    """Return the settings of this node's ranks: the agent's own, and the settings that the others wrote in time."""
    ranks = {world.local_rank: settings_of(env)}
    until = time.monotonic() + _PATIENCE_S
    while folder is not None:
        for local_rank, path in _files_by_local_rank(world, folder).items():
            if local_rank < world.local_size and local_rank != world.local_rank:
                with suppress(OSError, ValueError):
                    ranks[local_rank] = Settings.model_validate_json(_settings_of_living_rank(path))
        if len(ranks) >= world.local_size or time.monotonic() > until:
            break
        time.sleep(0.02)
    fact = RankSettings(local_size=world.local_size, ranks=dict(sorted(ranks.items())))
    return (fact.collected("env_vars"),)


def forget(world: OuterWorld, folder: Path) -> None:
    """Remove the files of this launch's ranks; killed ranks could not."""
    for path in _files_by_local_rank(world, folder).values():
        with suppress(OSError):
            path.unlink()


def _files_by_local_rank(world: OuterWorld, folder: Path) -> dict[int, Path]:
    name = re.compile(rf"{re.escape(file_stem(world))}\.(\d{{1,9}})\.rank", re.ASCII)
    with suppress(OSError):
        return {int(found[1]): path for path in folder.iterdir() if (found := name.fullmatch(path.name))}
    return {}


def _write_locked(path: Path, text: str) -> int:
    """Write a file atomically, locked before it has its name; the process's end releases the lock. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(new, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(text.encode())
        new.rename(path)
    except OSError:
        os.close(fd)
        with suppress(OSError):
            new.unlink()
        raise
    return fd


def _settings_of_living_rank(path: Path) -> bytes:
    """Return the settings of a living rank. Raises OSError, and ValueError for a file that does not count."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size > _LONGEST:
            raise ValueError(f"{path.name} does not belong to a rank of this user")
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(_LONGEST)
    raise ValueError(f"the rank that wrote {path.name} has exited")
