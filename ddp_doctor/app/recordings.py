"""Recordings, reports and other JSON files that users name: read, unpacked, and recordings evaluated again."""

import gzip
import io
import zlib
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from ddp_doctor.app.outcome import Outcome, UsageError, judge
from ddp_doctor.facts.given import FlightDumpFact, RecordingFact
from ddp_doctor.features import features_in
from ddp_doctor.model.base import Frozen, Json
from ddp_doctor.model.choices import as_usage_error
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import SCHEMA_VERSION, Recording
from ddp_doctor.model.report import JobFacts, LogsReport, Report
from ddp_doctor.parse.file_kinds import JSON, RECORDING, REPORT, json_kind
from ddp_doctor.parse.json_value import json_value, text_in
from ddp_doctor.sources.given import CannotRead, read_given

#: Thousands of nodes make a recording of some hundred megabytes.
MOST_BYTES = 1024 * 1024 * 1024
_GZIP = b"\x1f\x8b"  # RFC 1952
#: Labels of measurements that name a place. They are whole numbers, like the number of bytes.
PLACES = ("node", "rank", "peer", "gpu")
_Model = TypeVar("_Model", bound=BaseModel)


def replay(path: Path, ignore: tuple[str, ...] = ()) -> Outcome:
    """Evaluate an old recording with the current rules except ignored ones. Raises UsageError for other files."""
    return judge(load_recording(path).ignoring(ignore))


def load_recording(path: Path) -> Recording:
    """Read a recording. Raises UsageError with one sentence for every kind of wrong file."""
    with as_usage_error(CannotRead):
        content = read_given(str(path), most_bytes=MOST_BYTES)
    return recording_in(path, content)


def recording_in(path: Path, content: bytes) -> Recording:
    """Return the recording in a file's content. Raises UsageError with one sentence for every kind of wrong file."""
    try:
        text, data = json_in(content)
    except ValueError as error:
        raise _foreign(path, str(error)) from error
    other = json_kind(data)
    if other not in (None, RECORDING):
        raise _foreign(path, f"it is {other}")
    if major(data) > major({"schema_version": SCHEMA_VERSION}):
        raise UsageError(
            f"{quoted(path)} was written by a newer ddp-doctor (schema {data['schema_version']}; this release"
            f" reads {SCHEMA_VERSION}); upgrade ddp-doctor to replay it"
        )
    try:
        recording = Recording.model_validate_json(text)
        _require_facts(recording)
    except ValidationError as error:
        raise _foreign(path, what_is_wrong(error)) from error
    if not data.get("schema_version") or not recording.run_id:
        raise _foreign(path, "it has no schema_version or run_id")
    return recording


def _require_facts(recording: Recording) -> None:
    """Read all its facts, including facts of recordings within it. Raises ValidationError."""
    from ddp_doctor.checks import every_check  # they are created on request

    kinds: list[type[Fact]] = [FlightDumpFact, *(kind for found in features_in(recording) for kind in found.facts)]
    for kind in kinds + [kind for check in every_check(recording) for kind in check.facts]:
        recording.facts(kind)
    for within in recording.facts(RecordingFact):
        _require_facts(within.fact.recording)


def _foreign(path: Path, why: str) -> UsageError:
    return UsageError(f"{quoted(path)} is not a recording of ddp-doctor: {why}; write one with --record FILE")


def json_in(content: bytes) -> tuple[str, Json]:
    """Return the text and the value of plain or gzip content. Raises ValueError that describes invalid content."""
    if content.startswith(_GZIP):
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError("it is a truncated or damaged gzip file") from error
        if len(content) > MOST_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_BYTES >> 20} MiB, the size limit for a recording")
    text = text_in(content)
    return text, json_value(text)


class JsonFile(NamedTuple):
    """A JSON file that the user names."""

    path: str
    content: bytes
    text: str
    data: Json
    kind: str | None  # the kind of document, if its keys show it


def read_json(path: str) -> JsonFile:
    """Read and unpack a file. Raises UsageError with one sentence."""
    with as_usage_error(CannotRead):
        content = read_given(path, most_bytes=MOST_BYTES)
    try:
        text, data = json_in(content)
    except ValueError as error:
        raise UsageError(f"cannot use {quoted(path)}: {error}") from error
    return JsonFile(path, content, text, data, json_kind(data))


class _OfJob(Frozen):
    """The parts of a report of ``logs`` that are compared, in addition to its numbers."""

    facts: JobFacts


def report_in(file: JsonFile) -> Report:
    """Return the report in a file, or the report on the recording in it. Raises UsageError."""
    if file.kind == RECORDING:
        return judge(recording_in(Path(file.path), file.content)).report
    if file.kind != REPORT:
        raise UsageError(
            f"{quoted(file.path)} is {file.kind or JSON}, but a report or recording of ddp-doctor is expected"
        )
    report = validated(Report, file, "report")
    if "facts" in file.data:
        facts = validated(_OfJob, file, "report").facts
        report = LogsReport(**dict(report), facts=facts)
    for measured in report.measurements:
        for name in ("bytes", *PLACES):
            if not isinstance(number := measured.labels.get(name, 0), int):
                raise UsageError(
                    f"{quoted(file.path)} is not a valid report: in {measured.name}, {name} is {quoted(number)}"
                    " instead of an integer"
                )
    return report


def validated(model: type[_Model], file: JsonFile, noun: str) -> _Model:
    """Return the document in a file. Raises UsageError if its schema is newer or it is not valid."""
    if major(file.data) > 1:
        raise UsageError(
            f"{quoted(file.path)} is from a newer ddp-doctor (schema {file.data['schema_version']}); upgrade ddp-doctor"
        )
    try:
        return model.model_validate_json(file.text)
    except ValidationError as error:
        raise UsageError(f"{quoted(file.path)} is not a valid {noun}: {what_is_wrong(error)}") from error


def what_is_wrong(error: ValidationError) -> str:
    """Return what is wrong with the first invalid field."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if not where:
        return "it is not a JSON object"
    if first["type"] == "missing":
        return f"{where} is missing"
    return f"{where} has the invalid value {quoted(first['input'])}"


def major(data: Json) -> int:
    """Return the major version of the schema; 0 without one."""
    version = data.get("schema_version") if isinstance(data, dict) else None
    number = version.partition(".")[0] if isinstance(version, str) else ""
    return int(number) if number.isdecimal() and len(number) < 10 else 0
