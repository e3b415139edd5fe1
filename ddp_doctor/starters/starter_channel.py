"""The connection between an agent and the command that started it: messages over its stdout, a pipe as its stdin.

srun mixes the agents' outputs line by line and breaks lines longer than 1024 bytes (slurmstepd's MAX_MSG_LEN). So each
line has its node, and a recording is sent in pieces::

    ::ddp-doctor 0 progress "importing torch"
    ::ddp-doctor 0 recording "3 eJzVW1tz2kgW…"

Lines that a login shell, a library or a driver prints have another form and are ignored.

The starter writes one JSON object per line::

    {"host": "node2", "failed": "Permission denied (publickey)."}     an agent that could not be started
    {"signal": 2}                                                     the user pressed Ctrl-C
    {"headless": true}                                                the head's agent is gone
    {"heard": true}                                                   the last message of each agent is here

When the pipe closes, the starter or the connection to it (ssh, srun) is lost. The agent then also exits, so it does not
stay on its host.
"""

import base64
import json
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from ddp_doctor.facts.cluster import NotStarted
from ddp_doctor.starters.interruption import SIGNALS

Kind = Literal["hello", "progress", "met", "recording", "refused", "done"]
_LINE = re.compile(rb"::ddp-doctor (\d{1,6}) ([a-z]+) (\".{0,900}\")", re.ASCII)
_PIECE = re.compile(r"(\d{1,9}) (\S*)", re.ASCII)
_CODE = re.compile(r"\d{1,3}", re.ASCII)
_LONGEST = 700  # of a piece or a sentence, in characters; JSON makes at most a little more of it
#: Maximum size of a recording; thousands of ranks need less. Compressed it is at most a fifth of it.
_MOST_BYTES = 1 << 30
_MOST_PIECES = _MOST_BYTES // 5 // _LONGEST


@dataclass(frozen=True)
class Message:
    """A line after parsing."""

    node_rank: int
    kind: str
    text: str


class StarterChannel:
    """The agent's end. It takes over stdout: other output to stdout goes to stderr from now."""

    def __init__(self, node_rank: int) -> None:
        self._node_rank = node_rank
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def send(self, kind: Kind, text: str = "") -> None:
        """Send one message; without a starter it is lost."""
        with suppress(OSError):
            os.write(self._fd, written(self._node_rank, kind, text))

    def send_recording(self, recording: str) -> None:
        """Send a recording in JSON."""
        for piece in in_pieces(recording):
            self.send("recording", piece)


def written(node_rank: int, kind: Kind, text: str) -> bytes:
    """Return one line of at most 1024 bytes; longer text is cut."""
    words = json.dumps(text[:_LONGEST])
    while len(words) > _LONGEST + 100:  # escapes make characters longer
        text = text[: min(len(text), _LONGEST) * 2 // 3]
        words = json.dumps(text)
    return f"::ddp-doctor {node_rank} {kind} {words}\n".encode("ascii")


def in_pieces(recording: str) -> list[str]:
    """Return a compressed recording in pieces, each with the number of the pieces that follow."""
    packed = base64.b64encode(zlib.compress(recording.encode())).decode()
    size = _LONGEST - 20
    pieces = [packed[start : start + size] for start in range(0, len(packed), size)]
    return [f"{len(pieces) - 1 - number} {piece}" for number, piece in enumerate(pieces)]


def read(line: bytes) -> Message | None:
    """Return the message in a line, or None if it has another form."""
    found = _LINE.fullmatch(line.strip())
    with suppress(ValueError):
        return Message(int(found[1]), found[2].decode(), json.loads(found[3])) if found else None
    return None


@dataclass
class AgentState:
    """The messages that the starter has received from one agent."""

    has_answered: bool = False
    has_met: bool = False  # the others, at the node check-in
    recording: str | None = None
    refused: str | None = None  # why the agent would not run, in one sentence
    code: int | None = None  # its exit code, the last message
    _pieces: list[str] = field(default_factory=list)
    _left: int = 0  # pieces that will follow

    def take(self, message: Message) -> None:
        """Take a message."""
        self.has_answered = True
        if message.kind == "recording":
            self._take_piece(message.text)
        elif message.kind == "met":
            self.has_met = True
        elif message.kind == "refused":
            self.refused = message.text
        elif message.kind == "done" and _CODE.fullmatch(message.text) and int(message.text) < 256:
            self.code = int(message.text)

    def _take_piece(self, text: str) -> None:
        found = _PIECE.fullmatch(text)
        left = int(found[1]) if found else _MOST_PIECES
        if not self._pieces or left != self._left - 1:  # the first of a recording, or the one before is incomplete
            self._pieces.clear()
        if found is None or left >= _MOST_PIECES:
            return
        self._pieces.append(found[2])
        self._left = left
        if left == 0:
            unpack, self.recording = zlib.decompressobj(), None
            with suppress(ValueError, zlib.error):
                packed = base64.b64decode("".join(self._pieces), validate=True)
                text = unpack.decompress(packed, _MOST_BYTES).decode()
                self.recording = text if unpack.eof else None  # broken, or too large
            self._pieces.clear()


#: Set to 1 for an agent that was started by another ddp-doctor.
VARIABLE = "DDP_DOCTOR_STARTER_PIPE"
#: Longest that an agent may take for its partial report once the pipe has closed.
_LAST_S = 30.0
#: Maximum time that an agent stays after its last message; the agents of a run end together.
_HEARD_S = 5.0
#: Maximum number of failures to keep; a starter has at most one per host.
_MOST = 65_536


class StarterPipe:
    """The starter's messages; none for an agent without a starter."""

    def __init__(self) -> None:
        self._failures: list[NotStarted] = []
        self._is_headless = threading.Event()
        self._is_heard = threading.Event()
        self._is_in_roll_call = threading.Event()
        self.met: Callable[[], None] = lambda: None  # called once the nodes have met

    def not_started(self) -> tuple[NotStarted, ...]:
        """Return the hosts whose agents the starter could not start, or that ended."""
        return tuple(self._failures)

    @contextmanager
    def roll_call(self) -> Iterator[None]:
        """Mark that this agent waits to meet the head: if the head is gone, the run ends as by a signal.

        Later the agents detect on their own that the head is silent, and report what they know.
        """
        self._is_in_roll_call.set()
        try:
            self._end_if_headless()
            yield
        finally:
            self._is_in_roll_call.clear()

    def wait_until_heard(self) -> bool:
        """Wait until the starter has all agents' last messages or is gone; return False if neither happens in time.

        Once all tasks of a step have ended, one of them by a signal, srun drops their last output
        (client_io_handler_abort in slurm_step_launch_wait_finish). In 3 of 12 tries with SLURM 22.05 other tasks' lines
        were lost, which may include a report.
        """
        return self._is_heard.wait(_HEARD_S)

    def follow(self, fd: int) -> None:
        """Read the pipe until it closes, then end this process."""
        with suppress(OSError), os.fdopen(fd, "rb") as lines:
            for line in lines:
                with suppress(ValueError, TypeError, KeyError):
                    self._take(json.loads(line))
        self._is_heard.set()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_LAST_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _take(self, message: dict[str, object]) -> None:
        if "signal" in message and message["signal"] in {int(number) for number in SIGNALS}:
            os.kill(os.getpid(), int(str(message["signal"])))
        elif "headless" in message:
            self._is_headless.set()
            self._end_if_headless()
        elif "heard" in message:
            self._is_heard.set()
        elif "host" in message and len(self._failures) < _MOST:
            reason = str(message["failed"])[:1000]
            self._failures.append(NotStarted(hostname=str(message["host"]), reason=reason))

    def _end_if_headless(self) -> None:
        if self._is_headless.is_set() and self._is_in_roll_call.is_set():
            os.kill(os.getpid(), signal.SIGTERM)


def take(env: MutableMapping[str, str]) -> StarterPipe | None:
    """Return the pipe of the command that started this process, or None if a user or a launcher started it.

    The pipe is read from now, and its variable is removed from ``env``. Call once, before any process is started: child
    processes must not read its stdin.
    """
    if env.pop(VARIABLE, "") != "1":
        return None
    os.environ.pop(VARIABLE, None)
    fd = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    pipe = StarterPipe()
    threading.Thread(target=pipe.follow, args=(fd,), daemon=True, name="starter-pipe").start()
    return pipe
