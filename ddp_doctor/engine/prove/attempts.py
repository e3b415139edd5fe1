"""What one trial of a remedy comes to: passed and how fast, hung, or failed and with which words."""

from collections.abc import Iterator

from pydantic import ValidationError

from ddp_doctor.launch.shown import ShownFact
from ddp_doctor.launch.trial import TrialResult
from ddp_doctor.model.choices import Status
from ddp_doctor.model.experiment import Arm, Attempt
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.phrases.ranks import cause

_LONGEST_REASON = 200


def attempt_of(arm: Arm, result: TrialResult) -> Attempt:
    """The attempt that a trial was."""
    record = result.record
    facts = list(_facts(result))
    if record.outcome == "finished" and len(facts) == len(record.ranks):
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


def _facts(result: TrialResult) -> Iterator[ShownFact]:
    for reading in result.readings:
        if reading.status is Status.COLLECTED and reading.fact is not None:
            try:
                yield ShownFact.model_validate(reading.fact)
            except ValidationError:  # of another release; the trial then counts as failed
                return


def _why(record: TrialRecord) -> str:
    """The first words of a rank that failed for its own reasons; a victim's only where there are no others."""
    raised = [one for one in record.evidence if one.raised is not None]
    if not raised:
        died = next((one for one in record.evidence if one.exit_code is not None), None)
        return f"rank {died.rank} ended with exit code {died.exit_code}" if died else "the trial broke off"
    return _words(min(raised, key=_order))


def _order(one: RankEvidence) -> tuple[bool, float]:
    assert one.raised is not None
    return one.raised.blames_peer, one.raised.at


def _words(one: RankEvidence) -> str:
    assert one.raised is not None
    return f"{one.raised.type}: {cause(one.raised.message)}"[:_LONGEST_REASON]
