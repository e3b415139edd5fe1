"""Recordings as files: read, and judged again."""

import json
import math
from pathlib import Path

from pydantic import ValidationError

from ddp_doctor.app.outcome import Outcome, UsageError, judge
from ddp_doctor.checks import CHECKS
from ddp_doctor.model.recording import SCHEMA_VERSION, Recording
from ddp_doctor.sources.given import CannotRead, read_given

#: Thousands of nodes make a recording of some hundred megabytes.
_MOST_BYTES = 1024 * 1024 * 1024


def replay(path: Path) -> Outcome:
    """The findings of an old recording, by today's rules. Raises UsageError for a foreign file."""
    return judge(load_recording(path))


def load_recording(path: Path) -> Recording:
    """Read a recording. Raises UsageError with one sentence for every kind of wrong file."""
    try:
        text = read_given(str(path), most_bytes=_MOST_BYTES).decode("utf-8")
    except CannotRead as error:
        raise UsageError(str(error)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a recording: it is not a text file") from error
    version = _schema_version(path, text)
    if _major(version) > _major(SCHEMA_VERSION):
        raise UsageError(
            f"{path} was written by a newer ddp-doctor (schema {version}, this one reads"
            f" {SCHEMA_VERSION}); upgrade ddp-doctor to replay it"
        )
    try:
        recording = Recording.model_validate_json(text)
        for kind in (kind for check in CHECKS for kind in check.facts):
            recording.facts(kind)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"{path} is not a recording of ddp-doctor ({where}: {first['msg']})") from error
    if not version or not recording.run_id:
        raise UsageError(f"{path} is not a recording of ddp-doctor (it has no schema_version or run_id)")
    return recording


def _schema_version(path: Path, text: str) -> str:
    """The version that the file names, looked at first: a newer schema may have any shape."""

    def finite(number: str) -> float:
        if not math.isfinite(float(number)):
            raise ValueError(f"{number[:20]} is not a finite number")
        return float(number)

    try:
        data = json.loads(text, parse_int=finite, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a recording of ddp-doctor ({error})") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    return version if isinstance(version, str) else ""


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() and len(number) < 10 else 0
