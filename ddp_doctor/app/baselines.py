"""Baselines: read, and runs held against them."""

from dataclasses import replace

from ddp_doctor.app.outcome import Outcome, UsageError, judge
from ddp_doctor.app.recordings import read_json, validated
from ddp_doctor.engine.baseline import held_against
from ddp_doctor.model.baseline import Baseline
from ddp_doctor.model.error_text import quoted
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
