"""``--keep-output``: a process that copies what the command says, to where it would go and to files.

It is no part of the watcher, which may be killed: then it copies on, until the command and all that it has started
have closed their streams. Where nobody reads any more it leaves, and the command is sent SIGPIPE, as it would be.
"""

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

from ddp_doctor.features.jobs.watch.evidence import is_regular
from ddp_doctor.ranks import process

#: A file is full then. The first is kept, and the last two.
_FILE_BYTES = 32 << 20
_PIECE_BYTES = 1 << 16
_NAMES = {1: "stdout", 2: "stderr"}


class KeptOutput:
    """The copier of those of stdout and stderr that are no files, and the descriptors for the command in their places.

    ``is_ours``: it is a child of this process; else nobody's, for a process that becomes the command.
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
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the job's last words come after them
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
        """Have this process, and what it becomes, write to it."""
        for stream, write in self.streams.items():
            os.dup2(write, stream)
        self.started()

    def started(self) -> None:
        """The command has its ends of the pipes: only it may hold them open."""
        for write in self._ends:
            os.close(write)

    def has_ended(self) -> bool:
        """Whether all has been copied."""
        if self.pid:
            with suppress(ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                    return False
            self.pid = 0
        return True


def _copy(sources: dict[int, int], folder: Path, task: int) -> None:
    """Copy until all are closed; ``sources``: streams by the descriptors to read."""
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
    """Write all of it; False where nobody reads, or nothing can be written, as the command would have seen."""
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
    """A stream's words in files: the first, and the last two."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._number = self._room = 0
        self._file: int | None = None

    def add(self, data: bytes) -> None:
        """Keep them, as long as the disk has room."""
        try:
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
        except OSError:
            self._room = _FILE_BYTES  # so much later it tries again

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}.{number}.txt"
