"""One command for all nodes: starts an agent on each, hears them, and leaves none behind.

Each agent is on a leash (launch/leash.py) and speaks over the wire (launch/wire.py); how it is started,
by srun or by ssh, is in the Start that it comes with.
"""

import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from ddp_doctor.launch import wire
from ddp_doctor.launch.interruption import SIGNALS
from ddp_doctor.launch.wire import Heard

#: For the others to end, once the head's report is here or the run is interrupted.
GRACE_S = 20.0
#: For a process to end after SIGTERM: srun then kills its step, ssh closes its connection.
_KILL_S = 3.0
_LONGEST_LINE = 65_536
#: Of srun: how tasks ended that something else had ended, and what it says in any case.
_NOT_TELLING = re.compile(
    r"srun: (error: \S+: tasks? [\d,-]+: .*|.*lacks support for cpu binding|Terminating StepId.*)"
)
#: For the other agents to answer where the head's cannot be started: ssh gives up after ten seconds.
_ANSWER_S = 15.0


@dataclass(frozen=True)
class Start:
    """A command that starts the agents of these node ranks and carries what they say."""

    name: str  # "srun", "ssh node2", "this host"
    argv: tuple[str, ...]
    env: Mapping[str, str]
    node_ranks: tuple[int, ...]
    explain: Callable[[str], dict[str, str]] = lambda _line: {}  # host -> why, from a line of its stderr


@dataclass
class Ended:
    """How a run over all nodes ended, as the command that started it saw it."""

    heard: dict[int, Heard]
    not_started: dict[int, str] = field(default_factory=dict)  # why, by node rank
    broken_off: dict[int, str] = field(default_factory=dict)  # agents that began and did not end
    interrupted: bool = False
    timed_out: bool = False

    @property
    def recording(self) -> str | None:
        """The head's recording, else that of the first agent that has one of its own."""
        return next((one.recording for _, one in sorted(self.heard.items()) if one.recording), None)

    @property
    def refused(self) -> str | None:
        """Why the agents would not run."""
        return next((one.refused for _, one in sorted(self.heard.items()) if one.refused), None)


class _Channel:
    """One started process and its three pipes."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.why_not = ""
        self.last_words: deque[str] = deque(maxlen=20)
        self.process: subprocess.Popen[bytes] | None = None
        self._rest: dict[int, bytes] = {}
        try:
            self.process = subprocess.Popen(
                start.argv,
                env=dict(start.env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is handed on by us, once, and not by the terminal
            )
        except OSError as error:
            self.why_not = f"{start.argv[0]}: {error.strerror}"
            return
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)

    @property
    def pipes(self) -> tuple[IO[bytes], ...]:
        """stdin, stdout and stderr."""
        if self.process is None:
            return ()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return self.process.stdin, self.process.stdout, self.process.stderr

    @property
    def is_over(self) -> bool:
        """Whether the process has ended; a background ssh may hold its pipes open longer."""
        return self.process is None or self.process.poll() is not None

    def lines(self, pipe: IO[bytes]) -> Iterator[bytes]:
        """The lines that have come in whole. Raises EOFError after the last."""
        try:
            read = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, rest = (self._rest.pop(pipe.fileno(), b"") + read).split(b"\n")
        self._rest[pipe.fileno()] = rest[-_LONGEST_LINE:]
        yield from lines if read else [*lines, rest]
        if not read:
            raise EOFError

    def say(self, words: dict[str, object]) -> None:
        """Write to the leash of all its agents."""
        if self.process is not None:
            with suppress(OSError, ValueError):
                os.write(self.pipes[0].fileno(), (json.dumps(words) + "\n").encode())

    def let_go(self) -> None:
        """End the leash: the agents end themselves."""
        if self.process is not None:
            with suppress(OSError):
                self.pipes[0].close()

    def kill(self) -> None:
        """End the process: politely, as srun then ends its step, then not."""
        if self.process is None:
            return
        for end in (self.process.terminate, self.process.kill):
            if self.process.poll() is None:
                end()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(_KILL_S)
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.close()

    @property
    def reason(self) -> str:
        """Its last words, or how it ended."""
        if self.why_not:
            return self.why_not
        telling = [line for line in self.last_words if not _NOT_TELLING.fullmatch(line)]
        words = "; ".join(telling[-2:])
        code = self.process.returncode if self.process else None
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return words[:400] or f"{self.start.argv[0]} ended with {how} and without a word"


class FanOut:
    """The agents of one run. ``run`` starts them and returns when none is left."""

    def __init__(
        self, starts: Sequence[Start], hosts: Sequence[str], tell: Callable[[str], None], timeout_s: float
    ) -> None:
        self._starts = starts
        self._hosts = hosts
        self._tell = tell
        self._began = time.monotonic()
        self._until = self._began + timeout_s
        self._channels: list[_Channel] = []
        self._open_channels: list[_Channel] = []
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._ending = False
        self.ended = Ended({rank: Heard() for start in starts for rank in start.node_ranks})

    def run(self) -> Ended:
        """Start all, listen until they have ended, and end what has not. Main thread only."""
        with _noting(self._signals):
            try:
                for start in self._starts:
                    self._open(start)
                while not self._is_over():
                    self._listen(0.1)
                    self._note_what_ended()
                    self._heed_signals()
            finally:
                for channel in self._channels:
                    channel.let_go()
                for channel in self._channels:
                    channel.kill()
                self._selector.close()
        for channel in self._open_channels:
            self._note_how_it_ended(channel)
        return self.ended

    # --- the loop -------------------------------------------------------------------------------

    def _open(self, start: Start) -> None:
        channel = _Channel(start)
        self._channels.append(channel)
        self._open_channels.append(channel)
        for pipe in channel.pipes[1:]:
            self._selector.register(pipe, selectors.EVENT_READ, channel)

    def _listen(self, timeout_s: float) -> bool:
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            channel: _Channel = key.data
            pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
            try:
                for line in channel.lines(pipe):
                    self._hear(channel, line, is_stdout=pipe is channel.pipes[1])
            except EOFError:
                self._selector.unregister(pipe)
        return bool(ready)

    def _hear(self, channel: _Channel, line: bytes, *, is_stdout: bool) -> None:
        message = wire.read(line) if is_stdout else None
        if message is None:
            words = line.decode(errors="replace").strip()
            channel.last_words.extend([words] if words else [])
            for host, why in channel.start.explain(words).items():
                self._note_not_started(host, why)
        elif message.node_rank in channel.start.node_ranks:
            self.ended.heard[message.node_rank].hear(message)
            if message.kind == "progress" and message.node_rank == 0:
                self._tell(message.text)

    def _note_what_ended(self) -> None:
        for channel in [one for one in self._open_channels if one.is_over]:
            while self._listen(0.0):  # its last words are in the pipes
                pass
            for pipe in channel.pipes[1:]:
                if pipe in self._selector.get_map():
                    self._selector.unregister(pipe)  # a background ssh (ControlPersist) holds it open
            self._open_channels.remove(channel)
            self._note_how_it_ended(channel)

    def _note_how_it_ended(self, channel: _Channel) -> None:
        for rank in channel.start.node_ranks:
            if not self.ended.heard[rank].said_hello:
                if self.ended.interrupted:
                    continue  # by us, before it could answer
                self._note_not_started(self._hosts[rank], channel.reason)
            elif self.ended.heard[rank].code is None:
                self.ended.broken_off[rank] = channel.reason

    def _note_not_started(self, host: str, why: str) -> None:
        rank = self._hosts.index(host) if host in self._hosts else None
        if rank is None or rank in self.ended.not_started or self.ended.heard[rank].said_hello:
            return
        self.ended.not_started[rank] = why
        self._tell(f"{host} could not be started: {why}")
        for channel in self._channels:
            channel.say({"host": host, "failed": why})

    def _is_over(self) -> bool:
        if not self._open_channels:
            return True
        if self._ending:
            waited_for = {rank for channel in self._open_channels for rank in channel.start.node_ranks}
            return time.monotonic() > self._until or waited_for <= self.ended.not_started.keys()
        self.ended.timed_out = time.monotonic() > self._until
        without_head = 0 in self.ended.not_started and self._all_have_answered()
        if without_head or self.ended.timed_out:
            for channel in self._channels:
                channel.let_go()
        if without_head or self.ended.timed_out or self.ended.heard[0].code is not None:
            self._end_within(GRACE_S)
        return False

    def _all_have_answered(self) -> bool:
        """Whether each agent has spoken or failed; those that do neither in time count as failed."""
        late = [
            rank
            for rank, heard in self.ended.heard.items()
            if not heard.said_hello and rank not in self.ended.not_started
        ]
        if time.monotonic() < self._began + _ANSWER_S:
            return not late
        for rank in late:
            self._note_not_started(self._hosts[rank], f"no answer within {_ANSWER_S:.0f} s")
        return True

    def _end_within(self, seconds: float) -> None:
        self._ending = True
        self._until = time.monotonic() + seconds

    def _heed_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            self._end_within(0.0 if self.ended.interrupted else GRACE_S)  # the user insists
            self.ended.interrupted = True
            for channel in self._channels:
                channel.say({"signal": number})


@contextmanager
def _noting(signals: list[int]) -> Iterator[None]:
    """Collect the signals that end a run, instead of being ended by them."""

    def note(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
