"""The advice in a report of ``trace`` that a run can test."""

from pydantic import ValidationError

from ddp_doctor.app.outcome import UsageError
from ddp_doctor.app.recordings import read_json, what_is_wrong
from ddp_doctor.knowledge.ddp.arguments import COST
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import TraceAdvice
from ddp_doctor.parse.file_kinds import REPORT


class _OfTrace(Frozen):
    """The fields read from the report."""

    advice: tuple[TraceAdvice, ...]


def load_advice(path: str, model: str) -> tuple[TraceAdvice, ...]:
    """Return the changes of DDP's arguments in a report, the largest bound of each first. Raises UsageError."""
    if not model:
        raise UsageError(f"--from-trace {quoted(path)} requires a model; add --model MODULE:FACTORY")
    file = read_json(path)
    if file.kind != REPORT or "advice" not in file.data:
        what = "a report of ddp-doctor, but not of `trace`" if file.kind == REPORT else file.kind or "not a report"
        raise UsageError(
            f"{quoted(path)} is {what}; for --from-trace, write a report with `ddp-doctor trace PATH --json FILE`"
        )
    try:
        advice = _OfTrace.model_validate_json(file.text).advice
    except ValidationError as error:
        raise UsageError(f"cannot use {quoted(path)}: {what_is_wrong(error)}") from error
    first = dict[str, TraceAdvice]()
    for each in advice:
        if each.setting in COST:
            first.setdefault(each.setting, each)
    if not first:
        raise UsageError(
            f"{quoted(path)} does not recommend any DistributedDataParallel argument to test; omit --from-trace"
        )
    return tuple(first.values())
