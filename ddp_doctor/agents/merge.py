"""Merging the parts of a trial that the nodes hand in to one trial."""

from collections.abc import Sequence

from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks.late_ranks import late_steps
from ddp_doctor.ranks.trial import TrialResult


def merged(parts: Sequence[TrialResult], absent: tuple[int, ...]) -> TrialResult:
    """One result of all parts; the first is the head's. The ``absent`` nodes handed nothing in.

    The trial was judged in the earliest check that some node's ranks stood in.
    """
    records = [part.record for part in parts]
    head = records[0]
    evidence = sorted((rank for record in records for rank in record.evidence), key=lambda rank: rank.rank)
    if head.outcome == "finished":
        evidence = late_steps(evidence)
    lost = {node for record in records for node in record.lost_nodes}
    record = head.model_copy(
        update={
            "judged_check": _earliest(head, [record.judged_check for record in records]),
            "waited_s": max(record.waited_s for record in records),
            "evidence": tuple(evidence),
            "notes": tuple(note for record in records for note in record.notes),
            "lost_nodes": tuple(sorted({*lost, *absent})),
            "outcome": "stuck" if absent and head.outcome == "finished" else head.outcome,
        }
    )
    return TrialResult(record, tuple(reading for part in parts for reading in part.readings))


def _earliest(trial: TrialRecord, checks: Sequence[str | None]) -> str | None:
    known = [check for check in checks if check in trial.checks]
    return min(known, key=trial.checks.index, default=None)
