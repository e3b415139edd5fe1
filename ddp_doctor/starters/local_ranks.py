"""The settings of the other ranks on the agent's node, each in a file that its rank holds locked.

    torchrun-none_x7k2-attempt_0.3.rank    {"variables": {"NCCL_ALGO": "Tree"}, "withheld": []}

The folder is this user's alone. A file counts while its rank lives; a file that a killed rank left is
ignored. A rank that comes late, or never, has no settings here.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ddp_doctor.facts.cluster.consistency import RankSettings, Settings
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.probing.rank_settings import settings_of
from ddp_doctor.starters.detect import OuterWorld
from ddp_doctor.starters.outer_launcher import file_stem

#: The agent reads the files after it has read its node: ranks that started with it have written long before.
_PATIENCE_S = 0.5
#: Of one rank: no environment is longer (execve(2), MAX_ARG_STRLEN allows 128 KiB for one variable).
_LONGEST = 1 << 20


@contextmanager
def settings_shared(world: OuterWorld, folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Hold this rank's settings in a file while it waits for its agent; without the file it waits as well."""
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


def readings(world: OuterWorld, folder: Path | None, env: Mapping[str, str]) -> tuple[Reading]:
    """The settings of this node's ranks: the agent's own, and those that the others wrote in time."""
    ranks = {world.local_rank: settings_of(env)}
    until = time.monotonic() + _PATIENCE_S
    while folder is not None:
        ranks |= dict(_read_others(world, folder))
        if len(ranks) >= world.local_size or time.monotonic() > until:
            break
        time.sleep(0.02)
    fact = RankSettings(local_size=world.local_size, ranks=dict(sorted(ranks.items())))
    return (Reading(check="env_vars", status=Status.COLLECTED, fact=fact.recorded()),)


def forget(world: OuterWorld, folder: Path) -> None:
    """Remove the files of this launch's ranks; ranks that were killed could not."""
    for path in _files(world, folder).values():
        with suppress(OSError):
            path.unlink()


def _path(world: OuterWorld, folder: Path, local_rank: int) -> Path:
    return folder / f"{file_stem(world)}.{local_rank}.rank"


def _files(world: OuterWorld, folder: Path) -> dict[int, Path]:
    """The files of this launch, by local rank."""
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


def _read_others(world: OuterWorld, folder: Path) -> Iterator[tuple[int, Settings]]:
    for local_rank, path in _files(world, folder).items():
        if local_rank < world.local_size and local_rank != world.local_rank:
            with suppress(OSError, ValueError):
                yield local_rank, Settings.model_validate_json(_text(path))


def _text(path: Path) -> bytes:
    """The settings of a rank that lives. Raises OSError, and ValueError for a file that does not count."""
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
