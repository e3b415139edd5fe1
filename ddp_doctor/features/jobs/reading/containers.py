"""Files that hold output inside another format, and stacks: each as the text that a reader of output expects.

    {"__REALTIME_TIMESTAMP": "1790000000000000", "_HOSTNAME": "node1", "MESSAGE": [115, 116, 101, 112]}   journald
    {"events": [{"timestamp": 1790000000000, "message": "step 1"}, …]}                                     one line
    Process 4711: python train.py                                                                          py-spy dump

journald writes a message that is not plain text as an array of bytes (systemd, "Journal Export Formats").
"""

import ast
import codecs
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from ddp_doctor.features.jobs.table.signs import STACK_NOTE
from ddp_doctor.parse.frames import is_of_the_job
from ddp_doctor.parse.json_value import json_object
from ddp_doctor.parse.text import as_utf8

_MESSAGE_KEYS = ("MESSAGE", "message", "log", "msg", "textPayload", "text", "line")
_HOST_KEYS = ("_HOSTNAME", "hostname", "host", "node")
_MESSAGE = re.compile(rb'"(?:MESSAGE|message|log|msg|textPayload|text|line)"\s*:')
_BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_NO_MESSAGE = "no log entry contains a message"
#: Characters of a line; a longer one is cut into pieces.
_LONGEST_LINE = 1 << 20
_LONGEST_DOCUMENT = 1 << 16
_DEFINITION = re.compile(r"^(?:import|from|def|class) \w", re.MULTILINE)
_HEADING = re.compile(r"^#{1,4} \S", re.MULTILINE)
_PROCESS = re.compile(r"^Process (\d{1,10}): ", re.MULTILINE)
_THREAD = re.compile(r"^Thread \S{1,40} \([^)]{1,40}\)")
_FRAME = re.compile(r"^\s+(?P<function>\S.{0,200}?) \((?P<place>[^()\n]{1,300}:\d{1,7})\)$")


def is_utf16(head: bytes, _name: str = "") -> bool:
    """Return True if a file is UTF-16: by its byte-order mark, or because every other byte is zero."""
    few, many = sorted((head[:400:2].count(0), head[1:400:2].count(0)))
    is_alternate = len(head) >= 8 and many * 5 > len(head[:400]) * 2 and few * 20 < len(head[:400])
    return head[:2] in _BYTE_ORDER_MARKS or is_alternate  # a crash of the host leaves zeros in a row


def chunks_of_utf16(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text of a UTF-16 file as UTF-8, in pieces that end with a line end unless a line is very long."""
    decoder, carried = None, ""
    for block in blocks:
        if decoder is None:
            is_big_endian = block[:2] == b"\xfe\xff" or (block[:2] != b"\xff\xfe" and block[:400:2].count(0) > 50)
            decoder = codecs.getincrementaldecoder("utf-16-be" if is_big_endian else "utf-16-le")("replace")
        text = carried + decoder.decode(block).removeprefix("\ufeff")
        end = text.rfind("\n") + 1 or (len(text) if len(text) > _LONGEST_LINE else 0)
        carried = text[end:]
        if end:
            yield as_utf8(text[:end]).encode()
    if carried:
        yield as_utf8(carried).encode()


def is_entries(head: bytes, _name: str = "") -> bool:
    """Return True if a file is JSON whose entries hold the lines of an output, other than Docker's."""
    if head[:1] not in (b"{", b"[") or head.startswith(b'{"log":'):
        return False
    first = head.partition(b"\n")[0]
    most = max(Counter(_MESSAGE.findall(first)).values(), default=0)  # an entry has each key once
    return b'"__REALTIME_TIMESTAMP"' in first or most > 1


def is_entry_per_line(head: bytes) -> bool:
    """Return True if the first line of a file is an entry, so that the file can be read line by line."""
    first, end, _ = head.partition(b"\n")
    return bool(end) and any(isinstance(value, dict) for value in _values(first.decode("utf-8", "replace")))


def chunks_of_entries(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the messages of entries, one entry per line, chunk by chunk. Raises ValueError if there is none."""
    has_message = False
    for chunk in chunks:
        text = ""
        with suppress(ValueError):
            text = text_of_entries(chunk)
        has_message = has_message or bool(text)
        if text:
            yield as_utf8(text).encode()
    if not has_message:
        raise ValueError(_NO_MESSAGE)


def text_of_entries(data: bytes) -> str:
    """Return the messages of all entries, with the host before each line. Raises ValueError if there is none."""
    lines = [line for value in _values(data.decode("utf-8", "replace")) for line in _lines_in(value)]
    if not lines:
        raise ValueError(_NO_MESSAGE)
    return "".join(f"{line}\n" for line in lines)


def _values(text: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = text.find("\n", at) + 1 or len(text)
            continue
        yield value
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1


def _lines_in(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for entry in value:
            yield from _lines_in(entry)
    if not isinstance(value, dict):
        return
    message = next((value[key] for key in _MESSAGE_KEYS if isinstance(value.get(key), str | list)), None)
    if isinstance(message, list) and message and all(isinstance(byte, int) and 0 <= byte < 256 for byte in message):
        message = bytes(message).decode("utf-8", "replace")
    if isinstance(message, str):
        host = next((value[key] for key in _HOST_KEYS if isinstance(value.get(key), str)), "")
        prefix = f"[pod/{host}/output] " if re.fullmatch(r"[\w.-]{1,255}", host) else ""
        yield from (f"{prefix}{line}" for line in message.splitlines())
        return
    for entries in value.values():
        if isinstance(entries, list):
            yield from _lines_in(entries)


def document(head: bytes) -> str:
    """Return the kind of a text that no job printed: JSON, Python source or Markdown; empty for any other."""
    text = head[:_LONGEST_DOCUMENT].decode("utf-8", "replace")
    with suppress(ValueError, RecursionError):
        return "JSON" if json_object(text) and "\n" in text.strip() else ""
    if _DEFINITION.search(text):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in its strings
            ast.parse(text)
            return "Python source"
    is_markdown = len(_HEADING.findall(text)) > 1 and ("\n```" in text or "](" in text)
    return "Markdown" if is_markdown else ""


def is_stacks(head: bytes, _name: str = "") -> bool:
    """Return True if a file is what py-spy dump prints, as text."""
    return b"\nThread " in b"\n" + head and re.search(rb"^\s+\S.* \([^()\n]+:\d+\)$", head, re.MULTILINE) is not None


def text_of_stacks(data: bytes) -> str:
    """Return the dump with one more line for each process: the place of its main thread."""
    text = data.decode("utf-8", "replace")
    notes = "".join(f"{STACK_NOTE}{note}\n" for part in _processes(text) if (note := _place_of(part)))
    return f"{text.rstrip()}\n{notes}"


def _processes(text: str) -> list[str]:
    starts = [found.start() for found in _PROCESS.finditer(text)] or [0]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _is_of_library(place: str) -> bool:
    top = place.rpartition(":")[0].partition("/")[0].removesuffix(".py")
    return top == "torch" or top in sys.stdlib_module_names or not is_of_the_job(place)


def _place_of(process: str) -> str:
    frames: list[tuple[str, str]] = []
    for line in process.splitlines():
        if _THREAD.match(line):
            if frames:
                break  # the first thread is the main thread
            continue
        if frame := _FRAME.match(line):
            frames.append((frame["function"], frame["place"]))
    if not frames:
        return ""
    pid = _PROCESS.match(process)
    own = next((at for at, (_, place) in enumerate(frames) if not _is_of_library(place)), None)
    inner = frames[0 if own is None else max(own - 1, 0)][0]
    called = f", called at {frames[own][1]} in {frames[own][0]}" if own is not None else ""
    return f"process {pid[1] if pid else 'of unknown pid'} is in {inner}{called}"
