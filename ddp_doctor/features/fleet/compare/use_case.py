"""Compare a run with an earlier one, or the traces of two jobs."""

from collections.abc import Callable

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.app.recordings import read_json, report_in, validated
from ddp_doctor.facts.cluster import TracesFact
from ddp_doctor.features import FEATURES, recorded
from ddp_doctor.features.fleet.baseline import Baseline
from ddp_doctor.features.fleet.comparison import compared, measured_run
from ddp_doctor.model.check import BASELINE as CHECK
from ddp_doctor.model.choices import Command, Status
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Options
from ddp_doctor.parse.file_kinds import BASELINE
from ddp_doctor.sources.given import is_folder
from ddp_doctor.views.compared_traces import other_gpus


def compare(earlier: str, later: str, progress: Callable[[int, int], None] | None = None) -> Outcome:
    """Compare two runs or two traces. Raises UsageError."""
    kinds = [_is_trace(path) for path in (earlier, later)]
    if not any(kinds):
        return _compare_runs(earlier, later)
    if not all(kinds):
        trace, other = (earlier, later) if kinds[0] else (later, earlier)
        raise UsageError(
            f"cannot compare a trace with a report: {quoted(trace)} is a trace, but {quoted(other)} is not;"
            " give two traces or two reports"
        )
    fact = TracesFact(before=recorded("trace").side(earlier, progress), now=recorded("trace").side(later, progress))
    reading = fact.collected(CHECK)
    if other_gpus(fact):
        reading = reading.model_copy(update={"status": Status.FAILED, "reason": "the traces are of different GPUs"})
    return judge(blank(Options(command=Command.COMPARE), readings=(reading,)))


def _compare_runs(earlier: str, later: str) -> Outcome:
    """Compare two runs; without common measurements, report only other differences. Raises UsageError."""
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


def _is_trace(path: str) -> bool:
    if path == "-":
        return False
    from ddp_doctor.sources.job_files import job_files

    return is_folder(path) or any(key in file.head for file in job_files([path]) for key in FEATURES["trace"].signs)
