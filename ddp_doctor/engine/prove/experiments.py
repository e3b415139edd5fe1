"""Trying remedies: trials with and without their settings in turns, as few and as short as decide it."""

import time
from collections.abc import Callable, Sequence

from ddp_doctor.engine.prove.attempts import Spoiled
from ddp_doctor.engine.prove.candidates import Candidate
from ddp_doctor.engine.prove.proofs import proof_of
from ddp_doctor.model.experiment import Arm, Attempt, Experiment
from ddp_doctor.model.finding import Reproducer, Setting
from ddp_doctor.settings import trials
from ddp_doctor.wording.proofs import in_force

#: Runs one trial of what shows a fault, with these settings, for at most so many seconds. Raises Spoiled.
Try = Callable[[Arm, Reproducer, Sequence[Setting], float], Attempt]

_NO_TIME = "the time budget was used up"
_ANOTHER_DOES = "another remedy of this finding was proved first"
_RUN_ENDED = "the run ended before it was tried to the end"


class Trials:
    """Tries remedies until a moment (monotonic); ``kept`` is filled as they come."""

    def __init__(
        self, attempt: Try, until: float, kept: list[Experiment], backend: str, tell: Callable[[str], None]
    ) -> None:
        self._tell = tell
        self._attempt = attempt
        self._until = until
        self._kept = kept
        self._backend = backend

    def compare(self, alternatives: Sequence[Candidate], why_none: str | None = None) -> None:
        """Try the remedies of one finding, or note why none is. What ends the run is noted and raised.

        Where only the meeting is at stake the first that works does; where speed is, all are compared.
        """
        proved = False
        for candidate in alternatives:
            reason = why_none or candidate.reason
            if reason is None and proved and candidate.reproducer.kind == "meet":
                reason = _ANOTHER_DOES
            if reason is None and time.monotonic() >= self._until:
                reason = _NO_TIME
            tried = _experiment(candidate, (), reason) if reason else self._try(candidate)
            proved = proved or proof_of(tried).status == "proved"
            self._kept.append(tried)

    def _try(self, candidate: Candidate) -> Experiment:
        turns = _Turns(candidate, self._attempt, self._until, self._backend)
        try:
            self._tell(f"try {in_force(candidate.settings)}")
            return turns.run()
        except Spoiled as why:
            return turns.so_far(str(why))
        except BaseException:
            self._kept.append(turns.so_far(_RUN_ENDED))
            raise


def _experiment(candidate: Candidate, attempts: Sequence[Attempt], reason: str | None = None) -> Experiment:
    return Experiment(
        code=candidate.code,
        settings=candidate.settings,
        reproducer=candidate.reproducer,
        attempts=tuple(attempts),
        reason=reason,
    )


class _Turns:
    """The trials of one remedy."""

    def __init__(self, candidate: Candidate, attempt: Try, until: float, backend: str) -> None:
        self._candidate = candidate
        self._attempt = attempt
        self._until = until
        is_nccl = backend == "nccl"
        self._longest_s = trials.NCCL_TRIAL_S if is_nccl else trials.TRIAL_S
        self._hung_s = trials.NCCL_HUNG_S if is_nccl else trials.HUNG_S
        self._done: list[Attempt] = []

    def run(self) -> Experiment:
        """The treatment first: its duration decides when a control has hung."""
        ends_at = time.monotonic() + trials.ROUNDS_S
        rounds = trials.LEAST_ROUNDS if self._candidate.reproducer.kind == "meet" else trials.ROUNDS
        for turn in range(rounds):
            if turn and time.monotonic() >= (self._until if turn < trials.LEAST_ROUNDS else ends_at):
                break
            if self._take("treatment").outcome != "passed":
                break  # once is enough: nobody should set what may fail
            if turn and self._controls_failed():
                break  # the run had failed the same way before: more turns add nothing
            self._take("control")
        return _experiment(self._candidate, self._done)

    def so_far(self, reason: str) -> Experiment:
        """What was done of it, and why no more: nothing is concluded from a part."""
        return _experiment(self._candidate, self._done, reason)

    def _controls_failed(self) -> bool:
        return all(attempt.outcome != "passed" for attempt in self._done if attempt.arm == "control")

    def _take(self, arm: Arm) -> Attempt:
        try:
            tried = self._once(arm)
        except Spoiled:
            tried = self._once(arm)  # a machine may be busy for a moment
        self._done.append(tried)
        return tried

    def _once(self, arm: Arm) -> Attempt:
        settings = self._candidate.settings if arm == "treatment" else ()
        limit_s = self._limit_s(arm)
        tried = self._attempt(arm, self._candidate.reproducer, settings, limit_s)
        if arm == "treatment" and tried.outcome == "hung" and limit_s < self._longest_s:
            raise Spoiled(_NO_TIME)
        return tried

    def _limit_s(self, arm: Arm) -> float:
        """A treatment gets what a trial may take; a control a multiple of what the treatment took."""
        passed = [attempt.duration_s for attempt in self._done if attempt.arm == "treatment"]
        if arm == "treatment" or not passed:
            return max(min(self._longest_s, self._until - time.monotonic()), self._hung_s)
        slow_share = 1.0 if self._candidate.reproducer.kind == "meet" else trials.SLOW_SHARE
        return min(max(trials.HUNG_RATIO * max(passed), slow_share * self._hung_s), self._longest_s)
