"""Recordings as files: read, and judged again."""

from pathlib import Path

from pydantic import ValidationError

from ddp_doctor.app.json_files import MOST_BYTES, json_in, major, what_is_wrong
from ddp_doctor.app.outcome import Outcome, UsageError, judge
from ddp_doctor.facts.job_log import FlightDumpFact, JobLogFact, RecordingFact
from ddp_doctor.facts.live_job import LiveJobFact, LiveRankFact
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import SCHEMA_VERSION, Recording
from ddp_doctor.parse.file_kinds import RECORDING, json_kind
from ddp_doctor.sources.given import CannotRead, read_given


def replay(path: Path, ignore: tuple[str, ...] = ()) -> Outcome:
    """The findings of an old recording, by today's rules but those to ignore. Raises UsageError for a foreign file."""
    return judge(load_recording(path).ignoring(ignore))


def load_recording(path: Path) -> Recording:
    """Read a recording. Raises UsageError with one sentence for every kind of wrong file."""
    try:
        content = read_given(str(path), most_bytes=MOST_BYTES)
    except CannotRead as error:
        raise UsageError(str(error)) from error
    return recording_in(path, content)


def recording_in(path: Path, content: bytes) -> Recording:
    """The recording that the content of a file is. Raises UsageError with one sentence for every kind of wrong file."""
    try:
        text, data = json_in(content)
    except ValueError as error:
        raise _foreign(path, str(error)) from error
    other = json_kind(data)
    if other not in (None, RECORDING):
        raise _foreign(path, f"it is {other}")
    if major(data) > major({"schema_version": SCHEMA_VERSION}):
        raise UsageError(
            f"{path} was written by a newer ddp-doctor (schema {data['schema_version']}, this one reads"
            f" {SCHEMA_VERSION}); upgrade ddp-doctor to replay it"
        )
    try:
        recording = Recording.model_validate_json(text)
        _require_facts(recording)
    except ValidationError as error:
        raise _foreign(path, what_is_wrong(error, "recording")) from error
    if not data.get("schema_version") or not recording.run_id:
        raise _foreign(path, "it has no schema_version or run_id")
    return recording


def _require_facts(recording: Recording) -> None:
    """Read all its facts, also those of recordings within it. Raises ValidationError."""
    from ddp_doctor.checks import CHECKS  # made when it is asked for

    kinds: list[type[Fact]] = [JobLogFact, FlightDumpFact, LiveJobFact, LiveRankFact]
    for kind in kinds + [kind for check in CHECKS for kind in check.facts]:
        recording.facts(kind)
    for within in recording.facts(RecordingFact):
        _require_facts(within.fact.recording)


def _foreign(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a recording of ddp-doctor: {why}; a recording is what --record writes, and the file that a"
        " report names in the line above its verdict"
    )
