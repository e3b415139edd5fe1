"""What a run has recorded so far."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import NotRun, Recording
from ddp_doctor.model.trial import Experiment, TrialRecord


@dataclass
class PartialRecording:
    """Filled in place while a run goes on, so that an interrupted run still has it."""

    readings: list[Reading] = field(default_factory=list)
    trials: list[TrialRecord] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)

    def added_to(self, recording: Recording) -> Recording:
        """The recording with all that has been added until now."""
        return recording.model_copy(
            update={
                "readings": (*recording.readings, *self.readings),
                "trials": tuple(self.trials),
                "experiments": tuple(self.experiments),
                "not_run": (*recording.not_run, *self.not_run),
            }
        )

    def leave_out(self, checks: Iterable[Check], reason: str) -> None:
        """Note that these checks are not run."""
        self.not_run.extend(NotRun(check=check.id, reason=reason) for check in checks)

    def fail(self, checks: Sequence[Check], why: str, trace: str) -> None:
        """The doctor failed itself: the checks without a reading have failed, or else the last of all.

        Such a failure is never passed over in silence.
        """
        if not self.fail_unread(checks, why, trace):
            self.readings[:0] = [_failed(check, why, trace) for check in checks[-1:]]  # the first reason is shown

    def fail_unread(self, checks: Sequence[Check], why: str, trace: str = "") -> bool:
        """The checks that have no reading have failed; whether there are any."""
        read = {reading.check for reading in self.readings}
        unread = [check for check in checks if check.id not in read]
        self.readings += [_failed(check, why, trace) for check in unread]
        return bool(unread)


def _failed(check: Check, why: str, trace: str) -> Reading:
    return Reading(check=check.id, status=Status.FAILED, reason=why, raw=trace)
