"""One trial merged from the parts that the nodes send."""

from typing import Any

from ddp_doctor.agents import messages
from ddp_doctor.agents.remote_ranks import merged
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import World
from ddp_doctor.model.trial import RankEvidence, Step, TrialRecord
from ddp_doctor.ranks.trial import TrialResult


def _part(rank: int, outcome: str = "finished", judged: str | None = None, **evidence: Any) -> TrialResult:
    record = TrialRecord.model_validate(
        {
            "trial": "t0",
            "ranks": (0, 1, 2),
            "checks": ("process_group", "allreduce", "p2p"),
            "outcome": outcome,
            "judged_check": judged,
            "waited_s": float(rank),
            "evidence": (RankEvidence(rank=rank, node=rank, **evidence),),
        }
    )
    reading = Reading(check="p2p", status=Status.COLLECTED, node=rank, rank=rank)
    return TrialResult(record=record, readings=(reading,))


def test_the_parts_of_a_hang_are_one_trial_in_the_order_of_the_ranks():
    result = merged([_part(0, "stuck", "p2p"), _part(2, "stuck", "p2p"), _part(1, "stuck", "allreduce")], absent=())

    assert [one.rank for one in result.record.evidence] == [0, 1, 2]
    assert result.record.judged_check == "allreduce"
    assert result.record.waited_s == 2.0
    assert {reading.node for reading in result.readings} == {0, 1, 2}


def test_node_without_a_part_is_lost_and_the_trial_is_not_finished():
    result = merged([_part(0), _part(1)], absent=(2,))

    assert (result.record.outcome, result.record.lost_nodes) == ("stuck", (2,))


def test_only_late_steps_and_the_steps_before_are_kept_of_a_finished_trial():
    def steps(entered_at: float) -> tuple[Step, ...]:
        times = {1: (0.1, 0.2), 2: (0.3, 0.4), 3: (entered_at, 9.0), 4: (9.1, 9.2)}
        return tuple(
            Step(check="allreduce", name="all_reduce", seq=seq, entered_at=entered, left_at=left)
            for seq, (entered, left) in times.items()
        )

    result = merged([_part(0, steps=steps(1.0)), _part(1, steps=steps(1.0)), _part(2, steps=steps(4.5))], absent=())

    assert [[step.seq for step in one.steps] for one in result.record.evidence] == [[2, 3], [2, 3], [2, 3]]


def test_part_survives_serialization():
    part = _part(1, "stuck", "p2p")

    came = messages.trial_part(part.model_dump(mode="json"), 1, World(nnodes=3, world_size=3), "t0")

    assert came == part
