"""The outcome of one trial of a remedy: passed and how fast, hung, or failed with which message."""

import signal
from collections.abc import Iterator

from pydantic import ValidationError

from ddp_doctor.facts.remedy_probe import ShownFact
from ddp_doctor.model.choices import Status
from ddp_doctor.model.experiment import Arm, Attempt
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.ranks.trial import PAUSED, TrialResult
from ddp_doctor.wording.ranks import cause

_LONGEST_REASON = 200
#: No setting sends these signals to a rank: somebody did, or the kernel for lack of memory.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: A trial counts as hung only if it was watched for this share of its limit.
_WATCHED_SHARE = 0.8
#: Messages of a rank that could not write the run's own files.
_NO_ROOM = ("No space left on device", "Disk quota exceeded")


class Spoiled(Exception):
    """A trial from which nothing follows about its settings; the message says why."""


def attempt_of(arm: Arm, result: TrialResult) -> Attempt:
    """The attempt that a trial was. Raises Spoiled."""
    record = result.record
    facts = list(_facts(result))
    if why := _spoiled(record, len(facts)):
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
        reason="" if is_hung else _why(record),
        duration_s=record.duration_s,
    )


def _spoiled(record: TrialRecord, facts: int) -> str:
    """Why nothing follows about its settings; empty where something does."""
    if record.lost_nodes or record.outcome == "interrupted":
        return "a node left while it was tried"
    if record.outcome == "finished":
        return "" if facts == len(record.ranks) else "a rank said nothing that can be read"
    if broken := next(filter(None, map(_ended_otherwise, record.evidence)), ""):
        return broken
    watched = record.limit_s is None or record.duration_s >= _WATCHED_SHARE * record.limit_s
    if record.outcome in ("stuck", "slow") and (not watched or PAUSED in record.notes):
        return "the doctor was stopped, or starved of processor time, while it was tried"
    return ""


def _ended_otherwise(rank: RankEvidence) -> str:
    """How a rank ended for a reason that is no setting; empty where it did not."""
    if rank.raised is not None:
        full = any(words in rank.raised.message for words in _NO_ROOM)
        return f"rank {rank.rank} had no room for its files: {_words(rank)}" if full else ""
    if rank.exit_code is None or rank.done:
        return ""
    if -rank.exit_code in _FROM_OUTSIDE:
        name = signal.Signals(-rank.exit_code).name
        return f"rank {rank.rank} was ended from outside ({name}) while it was tried"
    if rank.exit_code >= 0:  # an exception of a test or a library is recorded as raised; a crash is a signal
        return f"rank {rank.rank} ended without a word while it was tried (is there room in TMPDIR?)"
    return ""


def _facts(result: TrialResult) -> Iterator[ShownFact]:
    for reading in result.readings:
        if reading.status is Status.COLLECTED and reading.fact is not None:
            try:
                yield ShownFact.model_validate(reading.fact)
            except ValidationError:  # of another release: the rank said nothing that can be read
                return


def _why(record: TrialRecord) -> str:
    """The first message of a rank that failed by itself; a victim's only where there are no others."""
    raised = [rank for rank in record.evidence if rank.raised is not None]
    if not raised:
        died = next((rank for rank in record.evidence if rank.exit_code is not None), None)
        return f"rank {died.rank} ended with exit code {died.exit_code}" if died else "the trial broke off"
    return _words(min(raised, key=_order))


def _order(rank: RankEvidence) -> tuple[bool, float]:
    assert rank.raised is not None
    return rank.raised.blames_peer, rank.raised.at


def _words(rank: RankEvidence) -> str:
    assert rank.raised is not None
    return f"{rank.raised.type}: {cause(rank.raised.message)}"[:_LONGEST_REASON]
