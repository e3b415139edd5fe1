"""``ddp-doctor logs``: why a job failed, from its output and the dumps of its flight recorder."""

import time
from collections.abc import Sequence
from pathlib import Path

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.engine.plan import Plan
from ddp_doctor.facts.job_log import FileSeen, JobLogFact
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options
from ddp_doctor.parse.job_log.scan import signs_in


def logs(paths: Sequence[str], ignore: tuple[str, ...] = ()) -> Outcome:
    """Judge these files. Raises UsageError where nothing could be read."""
    started = time.monotonic()
    try:
        texts = {path: Path(path).read_bytes() for path in paths}
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from error
    fact = JobLogFact(
        files=tuple(FileSeen(name=name, kind="output", size_bytes=len(text)) for name, text in texts.items()),
        signs=tuple(sign for name, text in texts.items() for sign in signs_in(name, text.splitlines())),
    )
    recording = blank(Options(command="logs", ignore=ignore), Plan(()))
    reading = Reading(check="logs", status=Status.COLLECTED, fact=fact.recorded())
    duration_s = time.monotonic() - started
    return judge(recording.model_copy(update={"readings": (reading,), "duration_s": duration_s}))
