"""``ddp-doctor logs``: why a job failed, from its output and the dumps of its flight recorder."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.engine.causes.judge import causes
from ddp_doctor.engine.plan import Plan
from ddp_doctor.facts.job_log import FileSeen, JobLogFact
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import CauseLine, JobCauseReport, LogsReport
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
    return judge_logs(recording.model_copy(update={"readings": (reading,), "duration_s": duration_s}))


def judge_logs(recording: Recording) -> Outcome:
    """The verdict on what was read of a job, and its causes."""
    outcome = judge(recording)
    named = tuple(
        JobCauseReport(
            name=judged.cause.name,
            confidence=judged.confidence,
            domain=judged.cause.domain,
            restart=judged.cause.restart,
            lines=tuple(CauseLine(**line.model_dump()) for line in judged.lines),
            next_check=judged.cause.next_check,
        )
        for judged in causes(recording)
    )
    return replace(outcome, report=LogsReport(**dict(outcome.report), causes=named))
