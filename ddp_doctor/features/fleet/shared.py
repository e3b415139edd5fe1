"""Baselines for ``run --baseline``."""

from collections.abc import Callable
from functools import partial

from ddp_doctor.app.outcome import UsageError
from ddp_doctor.app.recordings import read_json, validated
from ddp_doctor.features.fleet.baseline import Baseline
from ddp_doctor.features.fleet.comparison import held_against
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.parse.file_kinds import BASELINE


def comparison_with(path: str) -> Callable[[Recording, Report], Recording]:
    """Read a baseline, and return the function that adds the comparison with it to a recording. Raises UsageError."""
    file = read_json(path)
    if file.kind != BASELINE:
        raise UsageError(
            f"{quoted(path)} is {file.kind or 'not a baseline of ddp-doctor'}; write a"
            " baseline with `ddp-doctor fleet REPORTS --write-baseline FILE`"
        )
    return partial(held_against, validated(Baseline, file, "baseline"), path)
