"""Baselines: read, and runs held against them."""

from dataclasses import replace

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.app.recordings import read_json, report_in, validated
from ddp_doctor.engine.baseline import compared, held_against, measured_run
from ddp_doctor.model.baseline import Baseline
from ddp_doctor.model.choices import Command, Status
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Options
from ddp_doctor.parse.file_kinds import BASELINE


def load_baseline(path: str) -> Baseline:
    """Read what ``fleet --write-baseline`` wrote. Raises UsageError with one sentence for every kind of wrong file."""
    file = read_json(path)
    if file.kind != BASELINE:
        raise UsageError(
            f"{quoted(path)} is {file.kind or 'not a baseline of ddp-doctor'}; write a"
            " baseline with `ddp-doctor fleet REPORTS --write-baseline FILE`"
        )
    return validated(Baseline, file, "baseline")


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
    known = validated(Baseline, first, "baseline") if is_baseline else measured_run(report_in(first))
    speed, *rest = compared(measured_run(report), known, earlier)
    if speed.reason is not None:
        why = f"cannot compare {quoted(later)}: {speed.reason}"
        speed = speed.model_copy(update={"status": Status.FAILED, "reason": why, "misused": True})
    return judge(blank(Options(command=Command.COMPARE), world=report.world, readings=(speed, *rest)))
