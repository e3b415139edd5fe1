"""What the ranks beside the agent tell it: their settings, each in a file that its rank holds locked.

    torchrun-none_x7k2-attempt_0.3.rank    {"variables": {"NCCL_ALGO": "Tree"}, "withheld": []}

The folder is this user's alone. A file counts as long as its rank lives: what was left behind by one
that was killed is believed by nobody. Whoever comes late, or never, has told nothing.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ddp_doctor.facts.consistency import RankSettings, Settings
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.probing.rank_settings import settings_of
from ddp_doctor.starters.detect import ForeignWorld
from ddp_doctor.starters.outer_launcher import file_stem

#: The agent asks when it has read its node: ranks that came with it have told long since.
_PATIENCE_S = 0.5
#: Of one rank: no environment is longer (execve(2), MAX_ARG_STRLEN allows 128 KiB for one variable).
_LONGEST = 1 << 20


@contextmanager
def told(world: ForeignWorld, folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Tell this rank's settings while it waits for its agent; where they cannot be told, wait all the same."""
    path, lock = _path(world, folder, world.local_rank), None
    with suppress(OSError):
        lock = _put(path, settings_of(env).model_dump_json())
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                path.unlink()
            os.close(lock)


def readings(world: ForeignWorld, folder: Path | None, env: Mapping[str, str]) -> tuple[Reading]:
    """The settings of this node's ranks, the agent's own with those of the others that tell them in time."""
    ranks = {world.local_rank: settings_of(env)}
    until = time.monotonic() + _PATIENCE_S
    while folder is not None:
        ranks |= dict(_heard(world, folder))
        if len(ranks) >= world.local_size or time.monotonic() > until:
            break
        time.sleep(0.02)
    fact = RankSettings(local_size=world.local_size, ranks=dict(sorted(ranks.items())))
    return (Reading(check="env_vars", status=Status.COLLECTED, fact=fact.recorded()),)


def forget(world: ForeignWorld, folder: Path) -> None:
    """Remove what this launch's ranks have told; those that were killed could not."""
    for path in _files(world, folder).values():
        with suppress(OSError):
            path.unlink()


def _path(world: ForeignWorld, folder: Path, local_rank: int) -> Path:
    return folder / f"{file_stem(world)}.{local_rank}.rank"


def _files(world: ForeignWorld, folder: Path) -> dict[int, Path]:
    """What was told, by local rank."""
    name = re.compile(rf"{re.escape(file_stem(world))}\.(\d{{1,9}})\.rank", re.ASCII)
    with suppress(OSError):
        return {int(found[1]): path for path in folder.iterdir() if (found := name.fullmatch(path.name))}
    return {}


def _put(path: Path, text: str) -> int:
    """Write a file whole, locked before it has its name; the lock goes with the process. Raises OSError."""
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


def _heard(world: ForeignWorld, folder: Path) -> Iterator[tuple[int, Settings]]:
    for local_rank, path in _files(world, folder).items():
        if local_rank < world.local_size and local_rank != world.local_rank:
            with suppress(OSError, ValueError):
                yield local_rank, Settings.model_validate_json(_text(path))


def _text(path: Path) -> bytes:
    """What a rank that lives has told. Raises OSError, and ValueError for what is not to be believed."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size > _LONGEST:
            raise ValueError(f"{path.name} is none of this user's ranks'")
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(_LONGEST)
    raise ValueError(f"the rank that left {path.name} is gone")
