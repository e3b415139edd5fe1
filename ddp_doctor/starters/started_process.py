"""A started process that runs agents: its pipes, its last lines on stderr, and its end."""

import json
import os
import re
import resource
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

_LONGEST_LINE = 65_536
#: For a process to end after SIGTERM: srun then kills its step, ssh closes its connection.
_KILL_S = 3.0
#: For a process to end after SIGKILL. It ends at once unless it waits for a processor or is in state D.
_GONE_S = 10.0
#: Pipes of each process; while the last is being started, subprocess holds both ends of its pipes.
_PIPES = 3
#: Open files of this process beyond the pipes and the files that are already open.
_SPARE_FILES = 64
#: Lines of srun that are not a reason: tasks that another process ended, and lines that it always prints.
_NOT_TELLING = re.compile(
    r"srun: (error: \S+: tasks? [\d,-]+: .*|.*lacks support for cpu binding|Terminating StepId.*)"
)

_ReasonsByHost = Callable[[str], dict[str, str]]


@dataclass(frozen=True)
class Start:
    """A command that starts the agents of these node ranks and passes their messages on."""

    name: str  # "srun", "ssh node2", "this host"
    argv: tuple[str, ...]
    env: Mapping[str, str]
    node_ranks: tuple[int, ...]
    explain: _ReasonsByHost = lambda _: {}  # host -> why it got no agent, from a line of its stderr
    ends_by_host: _ReasonsByHost = lambda _: {}  # host -> how its agent ended, from such a line


class Channel:
    """A started process and its three pipes."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.last_words: deque[str] = deque(maxlen=20)
        self.process: subprocess.Popen[bytes] | None = None
        self.pipes: tuple[IO[bytes], ...] = ()  # stdin, stdout and stderr
        self._why_not = ""
        self._rest: dict[int, bytes] = {}
        try:
            self.process = subprocess.Popen(
                start.argv,
                env=dict(start.env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # this command, not the terminal, passes Ctrl-C on, once
            )
        except OSError as error:
            self._why_not = f"{start.argv[0]}: {error.strerror}"
            return
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self.pipes = tuple(pipe for pipe in pipes if pipe is not None)
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)

    def lines(self, pipe: IO[bytes]) -> Iterator[bytes]:
        """Yield the complete lines that have come. Raises EOFError after the last."""
        try:
            read = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, unended = (self._rest.pop(pipe.fileno(), b"") + read).split(b"\n")
        self._rest[pipe.fileno()] = unended[-_LONGEST_LINE:]
        yield from lines if read else [*lines, unended]
        if not read:
            raise EOFError

    def send(self, message: dict[str, object]) -> None:
        """Write to the control pipe of all its agents."""
        if self.process is not None:
            with suppress(OSError, ValueError):
                os.write(self.pipes[0].fileno(), (json.dumps(message) + "\n").encode())

    def let_go(self) -> None:
        """Close the control pipe: the agents then exit."""
        if self.process is not None:
            with suppress(OSError):
                self.pipes[0].close()

    @property
    def words(self) -> str:
        """The last lines that may be a reason."""
        telling = [line for line in self.last_words if not _NOT_TELLING.fullmatch(line)]
        return "; ".join(telling[-2:])[:400]

    @property
    def reason(self) -> str:
        """The last lines, or how the process ended."""
        code = self.process.returncode if self.process else None
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return self._why_not or self.words or f"{self.start.argv[0]} exited with {how} and no message"


def end_all(channels: Sequence[Channel]) -> None:
    """End the processes in parallel: by SIGTERM, so that srun ends its step, then by SIGKILL."""
    processes = [channel.process for channel in channels if channel.process is not None]
    for end, limit_s in ((subprocess.Popen.terminate, _KILL_S), (subprocess.Popen.kill, _GONE_S)):
        living = [process for process in processes if process.poll() is None]
        for process in living:
            end(process)
        until = time.monotonic() + limit_s
        for process in living:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))
    for channel in channels:
        for pipe in channel.pipes:
            with suppress(OSError):
                pipe.close()


class OpenFiles:
    """Room for the pipes of many processes if the usual soft limit of 1024 files is too low."""

    def __init__(self, processes: int) -> None:
        """Raise the soft limit if necessary. Raises ValueError if the hard limit does not allow it."""
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft, hard = self._before
        needed = _PIPES * (processes + 1) + len(os.listdir("/proc/self/fd")) + _SPARE_FILES
        if needed <= soft or soft == resource.RLIM_INFINITY:
            return
        if needed > hard != resource.RLIM_INFINITY:
            raise ValueError(
                f"{processes} hosts need {needed} open files, but this process may have only {hard}; raise the limit"
                " (ulimit -Hn), or list fewer hosts"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

    def as_before(self, process: "subprocess.Popen[bytes]") -> None:
        """Give a started process the original limit, as the job's programs have it."""
        if resource.getrlimit(resource.RLIMIT_NOFILE) != self._before:
            with suppress(OSError):  # it has ended already
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, self._before)
