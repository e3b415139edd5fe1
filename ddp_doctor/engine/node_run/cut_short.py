"""What a run that is interrupted says of the check in which it stood, and of those that had not begun."""

from collections.abc import Sequence

from ddp_doctor.engine.hang.judge import judge
from ddp_doctor.engine.hang.judgement import Kind
from ddp_doctor.engine.hang.rules.common import place
from ddp_doctor.engine.node_run.partial_recording import PartialRecording
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import INTERRUPTED_AFTER, NotRun
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.wording.ranks import rank_list

#: More places of ranks help no reader.
_PLACES = 4
_NOT_BEGUN = "interrupted before it began"
#: What to say of ranks that do not simply stand somewhere.
_IS: dict[Kind, str] = {"died": "had ended", "stopped": "was stopped", "never-began": "had not begun"}


def interrupted_after(seconds: float, what: str) -> str:
    """The reason of a check in which a run was interrupted."""
    return f"{INTERRUPTED_AFTER} {seconds:.{0 if seconds >= 1 else 1}f} s; {what}"


def note_interruption(partial: PartialRecording, checks: Sequence[Check], left_out: Sequence[NotRun]) -> None:
    """Note where the ranks stood in the check that was cut short, and which checks had not begun."""
    failed = {reading.check for reading in partial.readings if reading.status is Status.FAILED}
    for trial in partial.trials[-1:]:
        check = trial.checks[-1] if trial.launcher == "torchrun" else trial.judged_check
        if trial.outcome == "interrupted" and check is not None and check not in failed:
            _note_unread(partial, trial, check)
    known = {reading.check for reading in partial.readings} | {check.check for check in (*left_out, *partial.not_run)}
    partial.leave_out((check for check in checks if check.id not in known), _NOT_BEGUN)


def _note_unread(partial: PartialRecording, trial: TrialRecord, check: str) -> None:
    read = {reading.rank for reading in partial.readings if reading.check == check}
    reason = interrupted_after(trial.waited_s, where_ranks_stood(trial))
    partial.readings.extend(
        Reading(
            check=check, status=Status.SKIPPED, node=rank.node, rank=rank.rank, reason=reason, duration_s=trial.waited_s
        )
        for rank in trial.evidence
        if rank.rank not in read
    )


def where_ranks_stood(trial: TrialRecord) -> str:
    """``rank 1 stood in train.py:19, rank 0 waited for it``: a look at one moment, which blames nobody."""
    judgement = judge(trial)
    suspects = [rank for rank in trial.evidence if rank.rank in judgement.suspects]
    if suspects:
        waited = f", {rank_list(judgement.waiting)} waited for {'it' if len(suspects) == 1 else 'them'}"
        does = _where_they_stood(suspects, _IS.get(judgement.kind))
        return does + (waited if judgement.waiting else "")
    return _where_they_stood([rank for rank in trial.evidence if not rank.done])


def _where_they_stood(ranks: Sequence[RankEvidence], does: str | None = None) -> str:
    places = grouped((does or _does(rank), rank.rank) for rank in ranks)
    parts = [f"{rank_list(numbers)} {words}" for words, numbers in list(places.items())[:_PLACES]]
    return ", ".join(parts) or "the ranks were through"


def _does(rank: RankEvidence) -> str:
    if rank.raised is not None:
        return f"had raised {rank.raised.type}"
    at = place(rank)
    return f"stood in {at}" if at else "had not begun"
