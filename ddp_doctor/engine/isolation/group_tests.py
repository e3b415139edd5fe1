"""The result of the trial of a group of nodes."""

from collections.abc import Sequence

from ddp_doctor.engine.prove.experiments import Spoiled, attempt_of
from ddp_doctor.facts.collectives import GroupTest
from ddp_doctor.ranks.trial import TrialResult


def group_test(round_number: int, nodes: Sequence[int], result: TrialResult, at_s: float) -> GroupTest:
    """Return the group test of an unjudged all-reduce on ``nodes``; ``at_s`` counts from the first test."""
    record = result.record
    test = GroupTest(
        round=round_number,
        nodes=tuple(nodes),
        outcome="unknown",
        lost_nodes=record.lost_nodes,
        at_s=round(at_s, 3),
        duration_s=record.duration_s,
    )
    if record.lost_nodes:
        return test.model_copy(update={"outcome": "lost"})
    if result.cut_short is not None:
        return test.model_copy(update={"reason": result.cut_short})
    try:
        attempt = attempt_of("control", result)
    except Spoiled as why:
        # a killed rank counts as failed: a job would also have ended
        outcome = "failed" if record.outcome == "broken" else "unknown"
        return test.model_copy(update={"outcome": outcome, "reason": str(why)})
    is_wrong = attempt.outcome == "failed" and record.outcome == "finished"
    own = [rank for rank in record.evidence if rank.raised and not rank.raised.blames_peer]
    reason = f"rank {own[0].rank}: {attempt.reason}" if len(own) == 1 else attempt.reason
    found = {"bytes_per_s": attempt.bytes_per_s if attempt.outcome == "passed" else None, "reason": reason}
    return test.model_copy(update={"outcome": "wrong" if is_wrong else attempt.outcome, **found})
