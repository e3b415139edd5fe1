"""JSON that somebody names: unpacked, and refused in a few words where it is damaged."""

import gzip
import io
import zlib
from typing import NamedTuple

from pydantic import ValidationError

from ddp_doctor.model.base import Json
from ddp_doctor.model.choices import UsageError
from ddp_doctor.parse.file_kinds import json_kind
from ddp_doctor.parse.json_value import json_value, text_in
from ddp_doctor.sources.given import CannotRead, read_given

#: Thousands of nodes make a recording of some hundred megabytes.
MOST_BYTES = 1024 * 1024 * 1024
_GZIP = b"\x1f\x8b"  # RFC 1952
#: Of a value that does not fit, in a sentence.
_LONGEST_VALUE = 60


def json_in(content: bytes) -> tuple[str, Json]:
    """The text and the value in it, also of what gzip packed. Raises ValueError, which says what it is instead."""
    text = text_in(_unpacked(content))
    return text, json_value(text)


class JsonFile(NamedTuple):
    """One file of JSON that somebody names."""

    path: str
    content: bytes
    text: str
    data: Json

    @property
    def kind(self) -> str | None:
        """What it is, as far as its keys tell."""
        return json_kind(self.data)


def read_json(path: str) -> JsonFile:
    """Read and unpack it. Raises UsageError with one sentence."""
    try:
        content = read_given(path, most_bytes=MOST_BYTES)
        return JsonFile(path, content, *json_in(content))
    except CannotRead as error:
        raise UsageError(str(error)) from error
    except ValueError as error:
        raise UsageError(f"{path} cannot be used: {error}") from error


def what_is_wrong(error: ValidationError, kind: str) -> str:
    """The first field that does not fit ``kind`` of file, in a few words."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if not where:
        return "it is no object of JSON"
    if first["type"] == "missing":
        return f"{where} is missing"
    return f"it has {repr(first['input'])[:_LONGEST_VALUE]} under {where}, which no {kind} has"


def major(data: Json) -> int:
    """The first number of its schema's version; 0 where it has none."""
    version = data.get("schema_version") if isinstance(data, dict) else None
    number = version.partition(".")[0] if isinstance(version, str) else ""
    return int(number) if number.isdecimal() and len(number) < 10 else 0


def _unpacked(data: bytes) -> bytes:
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError("gzip packed it, and it is cut off or damaged") from error
    if len(unpacked) > MOST_BYTES:
        raise ValueError(f"unpacked it is larger than {MOST_BYTES >> 20} MiB")
    return unpacked
