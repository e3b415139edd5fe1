"""Recordings as files: read, and judged again."""

import gzip
import io
import json
import math
import zlib
from pathlib import Path

from pydantic import ValidationError

from ddp_doctor.app.outcome import Outcome, UsageError, judge
from ddp_doctor.facts.job_log import FlightDumpFact, JobLogFact
from ddp_doctor.facts.live_job import LiveJobFact, LiveRankFact
from ddp_doctor.model.base import Json
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import SCHEMA_VERSION, Recording
from ddp_doctor.parse.file_kinds import RECORDING, json_kind
from ddp_doctor.sources.given import CannotRead, read_given

#: Thousands of nodes make a recording of some hundred megabytes.
_MOST_BYTES = 1024 * 1024 * 1024
_GZIP = b"\x1f\x8b"  # RFC 1952
#: Of a value that does not fit, in a sentence.
_LONGEST_VALUE = 60


def replay(path: Path, ignore: tuple[str, ...] = ()) -> Outcome:
    """The findings of an old recording, by today's rules but those to ignore. Raises UsageError for a foreign file."""
    recording = load_recording(path)
    options = recording.options.model_copy(update={"ignore": (*recording.options.ignore, *ignore)})
    return judge(recording.model_copy(update={"options": options}) if ignore else recording)


def load_recording(path: Path) -> Recording:
    """Read a recording. Raises UsageError with one sentence for every kind of wrong file."""
    try:
        data = _unpacked(path, read_given(str(path), most_bytes=_MOST_BYTES))
    except CannotRead as error:
        raise UsageError(str(error)) from error
    return recording_in(path, data)


def recording_in(path: Path, content: bytes) -> Recording:
    """The recording that the content of a file is. Raises UsageError with one sentence for every kind of wrong file."""
    from ddp_doctor.checks import CHECKS  # made when it is asked for

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _foreign(path, "it is not a text file") from error
    data = _json(path, text)
    version = data.get("schema_version") if isinstance(data, dict) else None
    version = version if isinstance(version, str) else ""
    other = json_kind(data)
    if other not in (None, RECORDING):
        raise _foreign(path, f"it is {other}")
    if _major(version) > _major(SCHEMA_VERSION):
        raise UsageError(
            f"{path} was written by a newer ddp-doctor (schema {version}, this one reads"
            f" {SCHEMA_VERSION}); upgrade ddp-doctor to replay it"
        )
    try:
        recording = Recording.model_validate_json(text)
        kinds: list[type[Fact]] = [JobLogFact, FlightDumpFact, LiveJobFact, LiveRankFact]
        for kind in kinds + [kind for check in CHECKS for kind in check.facts]:
            recording.facts(kind)
    except ValidationError as error:
        raise _foreign(path, _what_is_wrong(error)) from error
    if not version or not recording.run_id:
        raise _foreign(path, "it has no schema_version or run_id")
    return recording


def _foreign(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a recording of ddp-doctor: {why}; a recording is what --record writes, and the file that a"
        " report names in the line above its verdict"
    )


def _what_is_wrong(error: ValidationError) -> str:
    """The first field that does not fit, in a few words."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the file"
    if first["type"] == "missing":
        return f"{where} is missing"
    return f"it has {repr(first['input'])[:_LONGEST_VALUE]} under {where}, which no recording has"


def _unpacked(path: Path, data: bytes) -> bytes:
    """The content, also of a file that gzip packed. Raises UsageError."""
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = file.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _foreign(path, "gzip packed it, and it is cut off or damaged") from error
    if len(unpacked) > _MOST_BYTES:
        raise _foreign(path, f"unpacked it is larger than {_MOST_BYTES >> 20} MiB")
    return unpacked


def _json(path: Path, text: str) -> Json:
    """The file as JSON, looked at first: a newer schema may have any shape. Raises UsageError."""

    def finite(number: str) -> float:
        if not math.isfinite(float(number)):
            raise ValueError(f"{number[:20]} is not a finite number")
        return float(number)

    try:
        return json.loads(text, parse_int=finite, parse_float=finite, parse_constant=finite)
    except json.JSONDecodeError as error:
        raise _foreign(path, f"line {error.lineno} is no JSON") from error
    except RecursionError as error:
        raise _foreign(path, "it is nested too deeply") from error
    except ValueError as error:
        raise _foreign(path, str(error)) from error


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() and len(number) < 10 else 0
