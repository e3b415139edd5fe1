"""Messages from an agent to the command that started it, over its stdout: short lines, each complete.

srun mixes the agents' outputs line by line and breaks lines longer than 1024 bytes (slurmstepd's
MAX_MSG_LEN), so each line names its node, and a recording goes in pieces::

    ::ddp-doctor 0 progress "import torch"
    ::ddp-doctor 0 recording "3 eJzVW1tz2kgW…"

Lines that a login shell, a library or a driver prints have another form and are ignored.
"""

import base64
import json
import os
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["hello", "progress", "met", "recording", "refused", "done"]
_LINE = re.compile(rb"::ddp-doctor (\d{1,6}) ([a-z]+) (\".{0,900}\")", re.ASCII)
_PIECE = re.compile(r"(\d{1,9}) (\S*)", re.ASCII)
_CODE = re.compile(r"\d{1,3}", re.ASCII)
_LONGEST = 700  # of a piece or a sentence, in characters; JSON makes at most a little more of it
#: Of a recording; thousands of ranks need less. Packed it is a fifth of it at most.
_MOST_BYTES = 1 << 30
_MOST_PIECES = _MOST_BYTES // 5 // _LONGEST


@dataclass(frozen=True)
class Message:
    """One line, read."""

    node_rank: int
    kind: str
    text: str


class StarterChannel:
    """The agent's end. It takes stdout for itself: other output to stdout goes to stderr from now on."""

    def __init__(self, node_rank: int) -> None:
        self._node_rank = node_rank
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def tell(self, kind: Kind, text: str = "") -> None:
        """Send one message; without a starter it is lost."""
        with suppress(OSError):
            os.write(self._fd, written(self._node_rank, kind, text))

    def tell_recording(self, recording: str) -> None:
        """Hand over a recording in JSON."""
        for piece in in_pieces(recording):
            self.tell("recording", piece)


def written(node_rank: int, kind: Kind, text: str) -> bytes:
    """One line of at most 1024 bytes; what is longer is cut."""
    words = json.dumps(text[:_LONGEST])
    while len(words) > _LONGEST + 100:  # escapes make characters longer
        text = text[: min(len(text), _LONGEST) * 2 // 3]
        words = json.dumps(text)
    return f"::ddp-doctor {node_rank} {kind} {words}\n".encode("ascii")


def in_pieces(recording: str) -> list[str]:
    """A recording packed, each piece with the number of those that follow."""
    packed = base64.b64encode(zlib.compress(recording.encode())).decode()
    size = _LONGEST - 20
    pieces = [packed[start : start + size] for start in range(0, len(packed), size)]
    return [f"{len(pieces) - 1 - number} {piece}" for number, piece in enumerate(pieces)]


def read(line: bytes) -> Message | None:
    """The message in a line, None where it is none."""
    found = _LINE.fullmatch(line.strip())
    if found is None:
        return None
    try:
        text = json.loads(found[3])
    except ValueError:
        return None
    return Message(int(found[1]), found[2].decode(), text)


@dataclass
class AgentState:
    """What the starter has received from one agent."""

    has_answered: bool = False
    has_met: bool = False  # the others, at the roll call
    recording: str | None = None
    refused: str | None = None  # why the agent would not run, in one sentence
    code: int | None = None  # its exit code, the last message
    _pieces: list[str] = field(default_factory=list)
    _left: int = 0  # pieces that are to follow

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
        if (
            not self._pieces or left != self._left - 1
        ):  # the first of a recording, or the one before is incomplete
            self._pieces.clear()
        if found is None or left >= _MOST_PIECES:
            return
        self._pieces.append(found[2])
        self._left = left
        if left == 0:
            self.recording = _unpacked("".join(self._pieces))
            self._pieces.clear()


def _unpacked(packed: str) -> str | None:
    """The recording, None where it is broken or too large."""
    unpack = zlib.decompressobj()
    with suppress(ValueError, zlib.error):
        text = unpack.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES).decode()
        return text if unpack.eof else None
    return None
