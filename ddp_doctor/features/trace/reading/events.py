"""The events of a trace of any size: Chrome JSON, an object with ``traceEvents`` or a bare array.

The file is read in pieces of one megabyte that end between two events, so memory is bounded and damage stays local. A
piece that is not valid JSON is read event by event and repaired if possible; events that cannot be repaired are
counted. Sources of damage in practice: pytorch/kineto 105, 336, 80; pytorch/pytorch 98432, 113001, 130622.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

#: Maximum length of an event: usually some hundred bytes, with C++ stacks some ten thousand.
_LONGEST_EVENT_BYTES = 16 << 20
#: Maximum distance of the first event from the start of a file: deviceProperties and pg_config of thousands of ranks
#: come before it.
_LONGEST_HEADER_BYTES = 32 << 20
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
#: The text between two events: written by Kineto, and by any other writer.
_BETWEEN = b"\n  },\n  {"
_BETWEEN_ANY = re.compile(rb'\}\s*(,)[\s,]*\{\s*"(?:ph|name|cat|pid|ts|tid|args|dur)"')
_FILLING = re.compile(rb"[\s,]*")
_END = re.compile(rb"\}[\s,]*(\])")
#: … if the last event is itself damaged.
_END_OF_ALL = re.compile(rb'\}[\s,]*(\])\s*(?:,\s*"\w+"\s*:|\}\s*$)')
#: Maximum number of possible ends of an event to try: its arguments may contain brackets before its real end.
_MOST_ENDS = 64
_NO_NUMBER = re.compile(rb"(?<=[:\s,\[])-?(?:inf(?:inity)?|nan)(?=[\s,\]}])", re.IGNORECASE)
_CONTROLS = b" " * 32 + bytes(range(32, 256))


class Event(msgspec.Struct, gc=False):
    """The fields of an event that are always read. Times in microseconds. ``args`` are not parsed yet."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str | None = 0
    tid: int | str | None = 0
    args: msgspec.Raw = msgspec.Raw()


class NotATrace(ValueError):
    """The file does not contain events; the message names the problem."""


# Not strict: Ascend writes times as strings.
_PIECE = msgspec.json.Decoder(list[Event], strict=False)
_ONE = msgspec.json.Decoder(Event, strict=False)
_ANY = msgspec.json.Decoder()
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def arguments(raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """Return the arguments of an event; empty if missing or damaged."""
    try:
        value = _ANY.decode(raw) if raw else None
    except _BROKEN:
        return {}
    return value if isinstance(value, dict) else {}


class EventStream:
    """The events of a file in its order. The other contents of the file are known at the end."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._around = [b"", b""]  # the text before and after the events
        self.damaged = 0
        self.cut = True  # False once the end of the events was read

    def header(self) -> dict[str, Any]:
        """Return the readable contents of the file other than events."""
        before, after = (part.translate(_CONTROLS) for part in self._around)
        if not before:
            return {}
        for text in (before + b"[]" + after, before + b"[]}", _NO_NUMBER.sub(b"null", before) + b"[]}"):
            if value := arguments(text):
                return value
        return {}

    def pieces(self) -> Iterator[list[Event]]:
        """Yield the events in lists. Raises NotATrace."""
        rest = self._begin()
        for chunk in self._chunks:
            rest += chunk
            end = rest.rfind(_BETWEEN) + 4
            if end < 4:
                end = max((found.start(1) for found in _BETWEEN_ANY.finditer(rest)), default=0)
            if end:
                yield self._piece(rest[:end])
                rest = rest[end + 1 :]
            elif len(rest) > _LONGEST_EVENT_BYTES:
                self.damaged += 1
                rest = b""
            if not self.cut:
                return
        yield self._one_by_one(rest)
        if self.cut:
            self.damaged -= bool(self.damaged and rest.strip())  # the last event is truncated, not damaged

    def _begin(self) -> bytes:
        """Return the text after the start of the events."""
        seen = b""
        for chunk in self._chunks:
            seen += chunk
            if seen.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"["):
                return seen.lstrip(b"\xef\xbb\xbf \r\n\t")[1:]
            if start := _EVENTS.search(seen):
                self._around[0] = seen[: start.end() - 1]
                return seen[start.end() :]
            if len(seen) > _LONGEST_HEADER_BYTES:
                break
        raise NotATrace("it is empty" if not seen.strip() else "it is not a trace, because it has no traceEvents")

    def _piece(self, text: bytes) -> list[Event]:
        try:
            return _PIECE.decode(b"[" + text + b"]")
        except _BROKEN:
            return self._one_by_one(text)

    def _one_by_one(self, text: bytes) -> list[Event]:
        """Return the events of a text that is partly damaged or contains the end of the events."""
        found, at = list[Event](), 0
        while self.cut and (at := _past(text, at)) < len(text):
            between = _BETWEEN_ANY.search(text, at)
            candidate = text[at : between.start(1) if between else len(text)]
            at += len(candidate)
            event = _decoded(candidate)
            if event is None:
                event, after = self._last(candidate)
                if after is not None:
                    self.cut = False
                    self._around[1] = after + text[at:]
            if event is not None:
                found.append(event)
            else:
                self.damaged += not candidate.startswith(b"]")
        return found

    def _last(self, text: bytes) -> tuple[Event | None, bytes | None]:
        """Return the last event and the text after the events, or None if the events do not end in this text."""
        if text.startswith(b"]"):
            return None, text[1:]
        for _, end in zip(range(_MOST_ENDS), _END.finditer(text), strict=False):
            if event := _decoded(text[: end.start() + 1]):
                return event, text[end.end() :]
        end_of_all = _END_OF_ALL.search(text)
        return None, text[end_of_all.end(1) :] if end_of_all else None


def _past(text: bytes, at: int) -> int:
    filling = _FILLING.match(text, at)
    return filling.end() if filling else at


def _decoded(text: bytes) -> Event | None:
    """Return an event, repaired if needed: bare words for numbers, control characters in strings, invalid UTF-8."""
    try:
        return _ONE.decode(text)
    except _BROKEN:
        mended = _NO_NUMBER.sub(b"null", text).translate(_CONTROLS).decode(errors="replace").encode()
    try:
        return _ONE.decode(mended)
    except _BROKEN:
        return None
