"""The recording of a run in progress. An interruption adds the ranks' positions and the checks that had not begun."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ddp_doctor.engine.hang.judge import judge
from ddp_doctor.engine.hang.judgment import Kind
from ddp_doctor.engine.hang.rules.common import place
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import INTERRUPTED_AFTER, NotRun, Recording
from ddp_doctor.model.trial import Experiment, RankEvidence, TrialRecord
from ddp_doctor.ranks.trial import TrialResult
from ddp_doctor.wording.ranks import rank_list

#: Maximum number of rank positions to list.
_PLACES = 4
#: Texts for ranks whose position is not informative.
_IS: dict[Kind, str] = {"died": "had ended", "stopped": "was stopped", "never-began": "had not begun"}


@dataclass
class PartialRecording:
    """A recording that is filled in place during a run, so that an interrupted run still has it."""

    readings: list[Reading] = field(default_factory=list)
    trials: list[TrialRecord] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)

    def added_to(self, recording: Recording) -> Recording:
        """Return the recording with everything added so far."""
        return recording.model_copy(
            update={
                "readings": (*recording.readings, *self.readings),
                "trials": tuple(self.trials),
                "experiments": tuple(self.experiments),
                "not_run": (*recording.not_run, *self.not_run),
            }
        )

    def keep(self, result: TrialResult) -> None:
        """Add a trial. If it repeats (a part of) a check with fewer ranks, its readings replace the earlier ones."""
        if result.record.limit_s is not None:
            return  # no rank is judged by it
        new = {_of_what(reading) for reading in result.readings}
        self.readings[:] = [reading for reading in self.readings if _of_what(reading) not in new]
        self.readings.extend(result.readings)
        self.trials.append(result.record)

    def leave_out(self, checks: Iterable[Check], reason: str) -> None:
        """Record that these checks are not run."""
        self.not_run.extend(NotRun(check=check.id, reason=reason) for check in checks)

    def fail(self, checks: Sequence[Check], why: str, trace: str) -> None:
        """Record an internal error: the checks without a reading have failed, or the last check if all have one.

        Such a failure is always reported.
        """
        if not self.fail_unread(checks, why, trace):
            self.readings[:0] = [_failed(check, why, trace) for check in checks[-1:]]  # the first reason is shown

    def fail_unread(self, checks: Sequence[Check], why: str, trace: str = "") -> bool:
        """Mark the checks without a reading as failed; return True if there are any."""
        read = {reading.check for reading in self.readings}
        unread = [check for check in checks if check.id not in read]
        self.readings += [_failed(check, why, trace) for check in unread]
        return bool(unread)


def _of_what(reading: Reading) -> object:
    return reading.check, reading.rank, reading.part


def _failed(check: Check, why: str, trace: str) -> Reading:
    return Reading(check=check.id, status=Status.FAILED, reason=why, raw=trace)


def interrupted_after(seconds: float, what: str) -> str:
    """Return the reason for a check that was interrupted."""
    return f"{INTERRUPTED_AFTER} {seconds:.{0 if seconds >= 1 else 1}f} s; {what}"


def note_interruption(partial: PartialRecording, checks: Sequence[Check], left_out: Sequence[NotRun]) -> None:
    """Record where the ranks were in the check that was cut short, and which checks had not begun."""
    failed = {reading.check for reading in partial.readings if reading.status is Status.FAILED}
    for trial in partial.trials[-1:]:
        check = trial.checks[-1] if trial.launcher == "torchrun" else trial.judged_check
        if trial.outcome == "interrupted" and check is not None and check not in failed:
            read = {reading.rank for reading in partial.readings if reading.check == check}
            reason = interrupted_after(trial.waited_s, where_ranks_stood(trial))
            cut_short = Reading(check=check, status=Status.SKIPPED, reason=reason, duration_s=trial.waited_s)
            partial.readings.extend(
                cut_short.model_copy(update={"node": rank.node, "rank": rank.rank})
                for rank in trial.evidence
                if rank.rank not in read
            )
    known = {reading.check for reading in partial.readings} | {check.check for check in (*left_out, *partial.not_run)}
    partial.leave_out((check for check in checks if check.id not in known), "interrupted before it began")


def where_ranks_stood(trial: TrialRecord) -> str:
    """Return positions of ranks from a single sample: ``rank 1 was in train.py:19, and rank 0 waited for it``."""
    judgment = judge(trial)
    suspects = [rank for rank in trial.evidence if rank.rank in judgment.suspects]
    if suspects:
        waited = f", and {rank_list(judgment.waiting)} waited for {'it' if len(suspects) == 1 else 'them'}"
        does = _where_they_stood(suspects, _IS.get(judgment.kind))
        return does + (waited if judgment.waiting else "")
    return _where_they_stood([rank for rank in trial.evidence if not rank.done])


def _where_they_stood(ranks: Sequence[RankEvidence], does: str | None = None) -> str:
    places = defaultdict(list)
    for rank in ranks:
        at = place(rank)
        stood = f"was in {at}" if at else "had not begun"
        places[does or (f"had raised {rank.raised.type}" if rank.raised else stood)].append(rank.rank)
    parts = [
        f"{rank_list(numbers)} {words if len(numbers) == 1 else words.replace('was ', 'were ', 1)}"
        for words, numbers in list(places.items())[:_PLACES]
    ]
    return ", ".join(parts) or "the ranks had finished"
