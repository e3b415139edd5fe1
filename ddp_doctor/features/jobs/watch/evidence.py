"""The files of a failed job, in a directory of its own: dumps, NCCL's log, exceptions and optionally its output.

The variables that make the job write them are set unless the user has set them. None adds a line to the job's output.
"""

import fcntl
import glob
import os
import re
import select
import shutil
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddp_doctor.ranks import process
from ddp_doctor.sources.own_folders import own_bases, private_folder, state_folder

#: Number of failed jobs whose files are kept.
_KEPT = 5
#: Maximum size of one job's files. NCCL's log has some kilobytes per rank, a dump some megabytes.
MOST_BYTES = 256 << 20
#: A disk with less free space is not used.
_LEAST_FREE_BYTES = 64 << 20
#: The user's and the system's nccl.conf (NCCL src/misc/param.cc).
_NCCL_CONF = ("~/.nccl.conf", "/etc/nccl.conf")
#: Default paths of torch's dumps (torch 2.13 and before, FlightRecorder).
_DUMPS = ("~/.cache/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")
_MOST_CONF_BYTES = 1 << 20
_TASK = "task-"


class Output(NamedTuple):
    """A regular file to which the command's stdout or stderr is redirected."""

    path: str
    start: int  # offset of the command's own output, in bytes


class Evidence:
    """The directory of one job on this node, and the variables that fill it; ``folder`` is None if unusable."""

    def __init__(self, env: Mapping[str, str], name: str, task: int) -> None:
        self._env = env
        self._started_s = time.time()
        self._lock: int | None = None
        self.problem: str | None = None
        self.folder = self._made(name)
        self.variables = dict(self._chosen(task)) if self.folder else {}

    def _made(self, name: str) -> Path | None:
        self.problem = "no directory is private to this user"
        for base in own_bases(state_folder(self._env)):
            above = base / "watch"
            if not private_folder(base) or not private_folder(above) or not (folder := private_folder(above / name)):
                continue
            self.problem, free_bytes = None, 0
            with suppress(OSError):
                free_bytes = shutil.disk_usage(folder).free
            if free_bytes < _LEAST_FREE_BYTES:
                self.problem = f"the disk of {above} is full"
                with suppress(OSError):
                    folder.rmdir()
                continue
            with suppress(OSError):
                self._lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _forget_old(above)
            return folder
        return None

    def _chosen(self, task: int) -> Iterator[tuple[str, str]]:
        env, folder = self._env, self.folder
        if "TORCH_FR_DUMP_TEMP_FILE" not in env and "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in env:
            yield "TORCH_FR_DUMP_TEMP_FILE", f"{folder}/flight_recorder_rank_"
        if "TORCHELASTIC_ERROR_FILE" not in env:
            yield "TORCHELASTIC_ERROR_FILE", f"{folder}/error-{task}.json"
        # NCCL adds the variables in these files to the environment, so they are also the user's choice.
        chosen = {*env}
        for path in (*filter(None, [env.get("NCCL_CONF_FILE")]), *_NCCL_CONF):
            with suppress(OSError), open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
                chosen |= set(re.findall(r"^(NCCL_DEBUG(?:_FILE)?)=", file.read(_MOST_CONF_BYTES), re.MULTILINE))
        if not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & chosen:
            yield "NCCL_DEBUG", "INFO"
            yield "NCCL_DEBUG_FILE", f"{str(folder).replace('%', '%%')}/nccl.%h.%p.log"

    def add_task(self, number: int, outputs: list[Output]) -> None:
        """Record a task of this node that is not a child of its watcher: its pid and output files."""
        if self.folder:
            lines = (str(os.getpid()), *(f"{output.start} {output.path}" for output in outputs))
            with suppress(OSError):
                (self.folder / f"{_TASK}{number}").write_text("\n".join(lines), errors="surrogateescape")

    def tasks(self) -> Iterator[tuple[int, list[Output]]]:
        """Yield the pids of the recorded tasks, and their output files."""
        for path in sorted(self.folder.glob(f"{_TASK}*")) if self.folder else ():
            with suppress(OSError, ValueError):
                if path.stat().st_mtime >= self._started_s - 60:
                    pid, *outputs = path.read_text(errors="surrogateescape").split("\n")
                    places = [line.partition(" ") for line in outputs]
                    yield int(pid), [Output(name, int(start)) for start, _, name in places]

    def outputs(self) -> list[Output]:
        """Return the job's output that can be read again: the kept output, and the files of recorded tasks."""
        kept = self.folder.glob("std???-*.txt") if self.folder else ()
        return [
            *(Output(str(path), 0) for path in kept),
            *(output for _, of_task in self.tasks() for output in of_task),
        ]

    def bound(self) -> bool:
        """Empty the largest files if the directory is too large; return True if any was emptied."""
        sizes = sorted(((found.st_blocks * 512, path) for path, found in self._files()), reverse=True)
        total = sum(size for size, _ in sizes)
        for size, path in sizes if total > MOST_BYTES else ():
            if total > MOST_BYTES:
                total -= size
                with suppress(OSError):
                    os.truncate(path, 0)
        return bool(sizes) and total != sum(size for size, _ in sizes)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(OSError):
            for path in sorted(self.folder.iterdir()) if self.folder else ():
                found = path.lstat()
                if stat.S_ISREG(found.st_mode):
                    yield path, found

    def files(self) -> list[str]:
        """Return the files of this job, in the directory and where the user or torch had them written."""
        kept = [
            str(path)
            for path, found in self._files()
            if found.st_mtime >= self._started_s - 1 and not path.name.startswith(_TASK)
        ]
        places = [self._env.get(name, "") for name in ("NCCL_DEBUG_FILE", "TORCHELASTIC_ERROR_FILE")]
        dumps = [self._env.get(f"TORCH_{name}_TEMP_FILE", "") for name in ("FR_DUMP", "NCCL_DEBUG_INFO")]
        if not any("flight_recorder_rank_" in path for path in kept):
            dumps += map(os.path.expanduser, _DUMPS)
        patterns = [re.sub("%[hp]", "*", glob.escape(place)) for place in places if place]
        patterns += [f"{glob.escape(place)}[0-9]*" for place in dumps if place]
        for path in (path for pattern in patterns for path in glob.glob(pattern)):
            with suppress(OSError):
                if os.stat(path).st_mtime >= self._started_s - 1:
                    kept.append(path)
        return kept

    def has_error_of_other_task(self) -> bool:
        """Return True if a task other than 0, the watcher's own, has left the exception that ended it."""
        return any(re.match("error-[1-9]", path.name) for path, _ in self._files())

    def note(self, text: str) -> None:
        """Record an observation of the watcher, to be read like the job's output."""
        if self.folder:
            with suppress(OSError), (self.folder / "watcher.txt").open("a") as file:
                file.write(f"{text}\n")

    def forget(self) -> None:
        """Remove the directory."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def is_regular(stream: int) -> bool:
    """Return True if the stream is a regular file, which can be read again."""
    with suppress(OSError):
        return stat.S_ISREG(os.fstat(stream).st_mode)
    return False


def regular_outputs() -> list[Output]:
    """Return the files of this process's stdout and stderr, if they can be read again."""
    found: dict[tuple[int, int], Output] = {}
    for stream in (1, 2):
        with suppress(OSError):
            status, path = os.fstat(stream), os.readlink(f"/proc/self/fd/{stream}")
            named = os.stat(path)
            if is_regular(stream) and (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino):
                appends = fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_APPEND
                start = status.st_size if appends else os.lseek(stream, 0, os.SEEK_CUR)
                found.setdefault((status.st_dev, status.st_ino), Output(path, start))
    return list(found.values())


def _forget_old(above: Path) -> None:
    with suppress(OSError):
        folders = sorted(above.iterdir(), key=lambda path: path.lstat().st_mtime)
        for folder in folders[: -_KEPT - 1]:
            with suppress(OSError):
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)


#: Maximum size of one file of kept output. The first file and the last two are kept.
_FILE_BYTES = 32 << 20
_PIECE_BYTES = 1 << 16
_NAMES = {1: "stdout", 2: "stderr"}


class KeptOutput:
    """A process that copies stdout and stderr unless they are files, and the descriptors for the command to write to.

    ``is_ours``: it is a child of this process. Otherwise, it is orphaned, because this process becomes the command.
    """

    def __init__(self, folder: Path, task: int, *, is_ours: bool) -> None:
        streams = [stream for stream in (1, 2) if not is_regular(stream)]
        same = False
        with suppress(OSError):
            places = [(found.st_dev, found.st_ino) for found in map(os.fstat, streams)]
            same = len(places) > 1 and places[0] == places[1]
        pipes = {stream: os.pipe() for stream in streams if stream == 1 or not same}
        self.streams = {stream: pipes[1 if same else stream][1] for stream in streams}
        self._ends = {write for _, write in pipes.values()}
        self.pid = os.fork()
        if self.pid == 0:
            with suppress(BaseException):
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the last output comes after them
                if is_ours or os.fork() == 0:
                    for write in self._ends:
                        os.close(write)
                    _copy({read: stream for stream, (read, _) in pipes.items()}, folder, task)
            os._exit(0)
        if not is_ours:
            os.waitpid(self.pid, 0)
        for read, _ in pipes.values():
            os.close(read)

    def take(self) -> None:
        """Let this process, and the command that it becomes, write to the copier."""
        for stream, write in self.streams.items():
            os.dup2(write, stream)
        self.started()

    def started(self) -> None:
        """Close the write ends of the pipes in this process: only the command may hold them open."""
        for write in self._ends:
            os.close(write)

    def has_ended(self) -> bool:
        """Return True once everything has been copied."""
        if self.pid:
            with suppress(ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                    return False
            self.pid = 0
        return True


def _copy(sources: dict[int, int], folder: Path, task: int) -> None:
    process.set_name("ddp-watch-tee")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in {0, 1, 2} - set(sources.values()):
        os.dup2(nothing, stream)
    kept = {source: _Kept(folder, f"{_NAMES[stream]}-{task}") for source, stream in sources.items()}
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    while kept:
        for source, _ in poll.poll():
            data = os.read(source, _PIECE_BYTES)
            if data and _pass_on(data, sources[source]):
                kept[source].add(data)
                continue
            poll.unregister(source)
            os.close(source)
            os.dup2(nothing, sources[source])
            del kept[source]


def _pass_on(data: bytes, stream: int) -> bool:
    """Write all data; return False on an error, such as a missing reader, as the command would have seen it."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(stream, left) :]
        except BlockingIOError:
            select.select((), (stream,), ())
        except OSError:
            return False
    return True


class _Kept:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._number = self._room = 0
        self._file: int | None = None

    def add(self, data: bytes) -> None:
        """Append the data, unless the disk is full or the directory is gone; the next call tries again."""
        with suppress(OSError):
            if self._room <= 0:
                if self._file is not None:
                    os.close(self._file)
                    self._file = None
                if self._number > 2:
                    self._path(self._number - 2).unlink(missing_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(self._path(self._number), flags, 0o600)
                self._number += 1
                self._room = _FILE_BYTES
            if self._file is not None:
                self._room -= os.write(self._file, data)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}.{number}.txt"
