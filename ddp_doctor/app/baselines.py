"""Baselines: read, and runs held against them."""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.app.recordings import JsonFile, major, read_json, recording_in, what_is_wrong
from ddp_doctor.engine.baseline import NUMBERS, compared, held_against, measured_run
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.baseline import Baseline
from ddp_doctor.model.choices import Command, Status
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Options
from ddp_doctor.model.report import JobFacts, LogsReport, Report
from ddp_doctor.parse.file_kinds import BASELINE, JSON, RECORDING, REPORT

_Model = TypeVar("_Model", bound=BaseModel)


class _OfJob(Frozen):
    """What is compared of a report of ``logs``, beside its numbers."""

    facts: JobFacts


def load_baseline(path: str) -> Baseline:
    """Read what ``fleet --write-baseline`` wrote. Raises UsageError with one sentence for every kind of wrong file."""
    file = read_json(path)
    if file.kind != BASELINE:
        raise UsageError(
            f"{quoted(path)} is {file.kind or 'not a baseline of ddp-doctor'}; write a"
            " baseline with `ddp-doctor fleet REPORTS --write-baseline FILE`"
        )
    return _validated(Baseline, file, "baseline")


def report_in(file: JsonFile) -> Report:
    """The report that a file is, or that of the recording it is. Raises UsageError."""
    if file.kind == RECORDING:
        return judge(recording_in(Path(file.path), file.content)).report
    if file.kind != REPORT:
        raise UsageError(
            f"{quoted(file.path)} is {file.kind or JSON}, but a report or recording of ddp-doctor is expected"
        )
    report = _validated(Report, file, "report")
    if "facts" in file.data:
        facts = _validated(_OfJob, file, "report").facts
        report = LogsReport(**dict(report), facts=facts)
    for measured in report.measurements:
        for name in NUMBERS:
            if not isinstance(number := measured.labels.get(name, 0), int):
                raise UsageError(
                    f"{quoted(file.path)} is not a valid report: in {measured.name}, {name} is {quoted(number)}"
                    " instead of an integer"
                )
    return report


def _validated(model: type[_Model], file: JsonFile, noun: str) -> _Model:
    """Raises UsageError for a newer schema, and for what no file of this kind has."""
    if major(file.data) > 1:
        raise UsageError(
            f"{quoted(file.path)} is from a newer ddp-doctor (schema {file.data['schema_version']}); upgrade ddp-doctor"
        )
    try:
        return model.model_validate_json(file.text)
    except ValidationError as error:
        raise UsageError(f"{quoted(file.path)} is not a valid {noun}: {what_is_wrong(error)}") from error


def with_baseline(outcome: Outcome, path: str, baseline: Baseline) -> Outcome:
    """The outcome of a run, judged beside its baseline too."""
    recording = held_against(outcome.recording, outcome.report, baseline, path)
    return replace(judge(recording), spoken_by=outcome.spoken_by)


def compare(earlier: str, later: str) -> Outcome:
    """Hold a report or a recording against a baseline, or against an earlier one. Raises UsageError.

    Where no number of theirs can be compared, the report says so, and still what else differs: that is what was asked.
    """
    if earlier == later == "-":
        raise UsageError("only one of the two inputs can be stdin (-); name a file for the other")
    first, report = read_json(earlier), report_in(read_json(later))
    is_baseline = first.kind == BASELINE
    known = _validated(Baseline, first, "baseline") if is_baseline else measured_run(report_in(first))
    speed, *rest = compared(measured_run(report), known, earlier)
    if speed.reason is not None:
        why = f"cannot compare {quoted(later)}: {speed.reason}"
        speed = speed.model_copy(update={"status": Status.FAILED, "reason": why, "misused": True})
    return judge(blank(Options(command=Command.COMPARE), world=report.world, readings=(speed, *rest)))
