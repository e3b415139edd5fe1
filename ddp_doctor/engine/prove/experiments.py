"""Test fixes: select them, alternate trials with and without their settings, and record how each trial ended."""

import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from pydantic import ValidationError

from ddp_doctor.agents.framing import RunIsOver
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.prove.proofs import is_unclear, proof_of
from ddp_doctor.facts.collectives import TrialMeasurement
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.model.choices import Level, Severity, Status
from ddp_doctor.model.finding import Finding, Reproducer, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import Arm, Attempt, Experiment, Raised, RankEvidence, TrialRecord
from ddp_doctor.ranks.node_ranks import Run
from ddp_doctor.ranks.trial import PAUSED, TrialResult
from ddp_doctor.settings import trials
from ddp_doctor.wording.proofs import in_force
from ddp_doctor.wording.ranks import cause, ended

_NO_RANKS = "this run could start no ranks to try it with"
_LONGEST_REASON = 200
#: A setting does not send these signals to a rank: a user did, or the kernel when memory ran out.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: A trial counts as hung only if it was watched for this share of its limit.
_WATCHED_SHARE = 0.8
#: Messages of a rank that could not write the run's own files.
_NO_ROOM = ("No space left on device", "Disk quota exceeded")


class Spoiled(Exception):
    """A trial that proves nothing about its settings; the message gives the reason."""


def attempt_of(arm: Arm, result: TrialResult) -> Attempt:
    """Return the attempt recorded by a trial. Raises Spoiled."""
    record = result.record
    facts = list(_facts(result))
    if why := why_nothing_follows(record, len(facts)):
        raise Spoiled(why)
    if record.outcome == "finished":
        wrong = sum(fact.wrong for fact in facts)
        rates = [fact.bytes_per_s for fact in facts if fact.bytes_per_s is not None]
        return Attempt(
            arm=arm,
            outcome="failed" if wrong else "passed",
            bytes_per_s=min(rates, default=None),
            reason=f"wrong results ({wrong} elements)" if wrong else "",
            unread=tuple(sorted({name for fact in facts for name in fact.unread})),
            duration_s=record.duration_s,
        )
    is_hung = record.outcome in ("stuck", "slow")
    return Attempt(
        arm=arm,
        outcome="hung" if is_hung else "failed",
        reason="" if is_hung else first_message(record),
        duration_s=record.duration_s,
    )


def why_nothing_follows(record: TrialRecord, facts: int) -> str:
    """Return why a trial proves nothing about its settings; empty if it does."""
    if record.lost_nodes or record.outcome == "interrupted":
        return "a node left during the test"
    if record.outcome == "finished":
        return "" if facts == len(record.ranks) else "a rank gave no readable result"
    if broken := next(filter(None, map(_ended_otherwise, record.evidence)), ""):
        return broken
    watched = record.limit_s is None or record.duration_s >= _WATCHED_SHARE * record.limit_s
    if record.outcome in ("stuck", "slow") and (not watched or PAUSED in record.notes):
        return "ddp-doctor was stopped, or got no processor time, during the test"
    return ""


def _ended_otherwise(rank: RankEvidence) -> str:
    """Return how a rank ended for a reason other than a setting; empty if it did not."""
    if rank.raised is not None:
        full = any(words in rank.raised.message for words in _NO_ROOM)
        return f"rank {rank.rank} had no room for its files: {_words(rank.raised)}" if full else ""
    if rank.exit_code is None or rank.done:
        return ""
    if -rank.exit_code in _FROM_OUTSIDE:
        name = signal.Signals(-rank.exit_code).name
        return f"rank {rank.rank} was killed from outside ({name}) during the test"
    if rank.exit_code >= 0:  # an exception of a test or a library is recorded as raised; a crash is a signal
        return f"rank {rank.rank} exited without output during the test (is there room in TMPDIR?)"
    return ""


def _facts(result: TrialResult) -> Iterator[TrialMeasurement]:
    for reading in result.readings:
        if reading.status is Status.COLLECTED and reading.fact is not None:
            try:
                yield TrialMeasurement.model_validate(reading.fact)
            except ValidationError:  # from another release: the rank's answer cannot be read
                return


def first_message(record: TrialRecord) -> str:
    """Return the first exception that does not blame a peer, or how a rank died; otherwise the first exception."""
    raised = sorted((rank.raised for rank in record.evidence if rank.raised), key=attrgetter("blames_peer", "at"))
    died = next((rank for rank in record.evidence if rank.exit_code is not None and rank.raised is None), None)
    if died is not None and all(each.blames_peer for each in raised):
        return f"rank {died.rank} {ended(died)}"
    return _words(raised[0]) if raised else "the trial broke off"


def _words(raised: Raised) -> str:
    return f"{raised.type}: {cause(raised.message)}"[:_LONGEST_REASON]


def candidates(recording: Recording, findings: Sequence[Finding], env: Mapping[str, str]) -> Iterator[list[Experiment]]:
    """Yield the fixes of each finding that has a reproducer, in the order of the findings.

    A fix with a ``reason`` cannot be tested. Fixes of info findings are tested only at level thorough, because tests
    take time on healthy machines.
    """
    world = recording.world
    known = set(env).union(*(node.fact.variables for node in recording.facts(EnvVars)))
    least = Severity.INFO if recording.options.level is Level.THOROUGH else Severity.WARNING
    for finding in findings:
        if world is None or finding.reproduced_by is None or not finding.severity.at_least(least):
            continue
        made = [remedy for remedy in finding.remedies if remedy.settings and remedy.scope == "job"]
        if made:
            yield [
                Experiment(
                    code=finding.code,
                    settings=remedy.settings,
                    reproducer=finding.reproduced_by,
                    reason=_why_not(remedy.settings, world.backend, known),
                )
                for remedy in made
            ]


def _why_not(settings: Sequence[Setting], backend: str, env: Collection[str]) -> str | None:
    unset = {setting.name for setting in settings if setting.action == "unset"}
    if reason := trials.why_not((setting.name for setting in settings), backend, unset):
        return reason
    # The environment can override what a file sets, but cannot unset it.
    for setting in settings:
        if setting.action == "unset" and setting.node_rank is None and setting.name not in env:
            return f"{setting.name} does not come from the environment of the ranks, and a trial does not change files"
    return None


#: Runs one trial of a reproducer with these settings and a time limit in seconds. Raises Spoiled.
Try = Callable[[Arm, Reproducer, Sequence[Setting], float], Attempt]

_NO_TIME = "the time budget was used up"


@dataclass
class Trials:
    """The tests of fixes until a moment (monotonic); ``kept`` is filled as they end."""

    attempt: Try
    until: float
    kept: list[Experiment]
    backend: str
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self._longest_s = trials.NCCL_TRIAL_S if self.backend == "nccl" else trials.TRIAL_S
        self._hung_s = trials.NCCL_HUNG_S if self.backend == "nccl" else trials.HUNG_S

    def compare(self, alternatives: Sequence[Experiment], why_none: str | None = None) -> None:
        """Test the fixes of one finding, or record why not. Errors that end the run are recorded and raised.

        For a ``meet`` reproducer the first fix that works is enough; otherwise all are compared by speed.
        """
        proved = False
        for candidate in alternatives:
            reason = why_none or candidate.reason
            if reason is None and proved and candidate.reproducer.kind == "meet":
                reason = "another remedy of this finding was proved first"
            if reason is None and time.monotonic() >= self.until:
                reason = _NO_TIME
            if reason is None:
                self._try(candidate)
            else:
                self.kept.append(candidate.model_copy(update={"reason": reason}))
            proved = proved or proof_of(self.kept[-1]).status == "proved"

    def _try(self, candidate: Experiment) -> None:
        """Keep the attempts of a fix and why it was not finished: incomplete attempts prove nothing."""
        done, reason = list[Attempt](), "the run ended before it was tried to the end"
        try:
            self.tell(f"testing {in_force(candidate.settings)}")
            self._take_turns(candidate, done)
            reason = ""
        except Spoiled as why:
            reason = str(why)
        finally:
            self.kept.append(candidate.model_copy(update={"attempts": tuple(done), "reason": reason or None}))

    def _take_turns(self, candidate: Experiment, done: list[Attempt]) -> None:
        """Alternate trials. The treatment comes first: its duration decides when a control has hung."""
        ends_at = time.monotonic() + trials.ROUNDS_S
        rounds = trials.LEAST_ROUNDS if candidate.reproducer.kind == "meet" else trials.ROUNDS
        for turn in range(trials.MOST_ROUNDS):
            more = turn < trials.LEAST_ROUNDS or is_unclear(candidate.model_copy(update={"attempts": tuple(done)}))
            if turn and time.monotonic() >= (self.until if more else ends_at):
                break
            if turn >= rounds and not more:
                break
            if self._take(candidate, "treatment", done).outcome != "passed":
                break  # one failure is enough: such a setting is not recommended
            if turn and all(attempt.outcome != "passed" for attempt in done if attempt.arm == "control"):
                break  # the run had failed the same way before: more turns add nothing
            self._take(candidate, "control", done)

    def _take(self, candidate: Experiment, arm: Arm, done: list[Attempt]) -> Attempt:
        try:
            tried = self._once(candidate, arm, done)
        except Spoiled:
            tried = self._once(candidate, arm, done)  # a machine may be busy for a moment
        done.append(tried)
        return tried

    def _once(self, candidate: Experiment, arm: Arm, done: Sequence[Attempt]) -> Attempt:
        settings = candidate.settings if arm == "treatment" else ()
        limit_s = self._limit_s(candidate, arm, done)
        tried = self.attempt(arm, candidate.reproducer, settings, limit_s)
        if arm == "treatment" and tried.outcome == "hung" and limit_s < self._longest_s:
            raise Spoiled(_NO_TIME)
        return tried

    def _limit_s(self, candidate: Experiment, arm: Arm, done: Sequence[Attempt]) -> float:
        """Return the limit: a treatment gets the limit of a trial, a control a multiple of the treatment's duration."""
        passed = [attempt.duration_s for attempt in done if attempt.arm == "treatment"]
        if arm == "treatment" or not passed:
            return max(min(self._longest_s, self.until - time.monotonic()), self._hung_s)
        slow_share = 1.0 if candidate.reproducer.kind == "meet" else trials.SLOW_SHARE
        return min(max(trials.HUNG_RATIO * max(passed), slow_share * self._hung_s), self._longest_s)


def prove(
    recording: Recording, findings: Sequence[Finding], run: Run, agent: Agent | None, kept: list[Experiment]
) -> None:
    """Test the fixes of the findings on the agent's ranks until the run's time is up; fills ``kept``."""

    def attempt(arm: Arm, reproducer: Reproducer, settings: Sequence[Setting], limit_s: float) -> Attempt:
        assert agent is not None
        try:
            result = agent.attempt(reproducer, settings, limit_s)
        except RunIsOver:
            raise
        except Exception as error:
            raise Spoiled(f"internal error in the test of the fix ({type(error).__name__}: {error})") from error
        if result.cut_short is not None:
            raise Spoiled(f"cut short: {result.cut_short}")
        return attempt_of(arm, result)

    why_none = "left out by --no-prove" if not recording.options.prove else _NO_RANKS if agent is None else None
    trying = Trials(attempt, run.until, kept, recording.backend, run.progress)
    for alternatives in candidates(recording, findings, run.env):
        if agent is not None and agent.node_ranks.lost_helper() is not None:
            why_none = _NO_RANKS
        trying.compare(alternatives, why_none)
