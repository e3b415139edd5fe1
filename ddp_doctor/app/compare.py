"""``ddp-doctor compare``: a run beside an earlier one, or the traces of a job beside those of another."""

from collections.abc import Callable

from ddp_doctor.app import baselines
from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.facts.cluster import TracesFact
from ddp_doctor.features import FEATURES, recorded
from ddp_doctor.model.check import BASELINE
from ddp_doctor.model.choices import Command, Status
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Options
from ddp_doctor.sources.given import is_folder
from ddp_doctor.views.compared_traces import other_gpus


def beside(earlier: str, later: str, progress: Callable[[int, int], None] | None = None) -> Outcome:
    """Hold one against the other, both of a kind. Raises UsageError."""
    kinds = [_is_trace(path) for path in (earlier, later)]
    if not any(kinds):
        return baselines.compare(earlier, later)
    if not all(kinds):
        trace, other = (earlier, later) if kinds[0] else (later, earlier)
        raise UsageError(
            f"cannot compare a trace with a report: {quoted(trace)} is a trace, but {quoted(other)} is not;"
            " give two traces or two reports"
        )
    fact = TracesFact(before=recorded("trace").side(earlier, progress), now=recorded("trace").side(later, progress))
    reading = fact.collected(BASELINE)
    if other_gpus(fact):
        reading = reading.model_copy(update={"status": Status.FAILED, "reason": "the traces are of different GPUs"})
    return judge(blank(Options(command=Command.COMPARE), readings=(reading,)))


def _is_trace(path: str) -> bool:
    """Whether it is a folder, or begins as a trace does, packed or not."""
    if path == "-":
        return False
    from ddp_doctor.sources.job_files import job_files

    return is_folder(path) or any(key in file.head for file in job_files([path]) for key in FEATURES["trace"].signs)
