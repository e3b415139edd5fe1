"""The rules over trials if a node stopped responding, and if links between nodes hang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ddp_doctor.engine.hang.rules import TRIAL_RULES, hangs, links
from ddp_doctor.facts.cluster import SilenceFact
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.trial import Raised, RankEvidence, Step, TrialRecord
from tests.readings import collected, trial_of, uneven_world
from tests.simulated import group_fact

RESET = Raised(type="RuntimeError", message="Connection reset by peer [10.77.0.3]", blames_peer=True, at=1.0)


def world(nodes: int, nproc: int = 1, backend: str = "gloo") -> World:
    return uneven_world([nproc] * nodes, backend)


def step(seq: int = 3, **fields: Any) -> Step:
    given: dict[str, Any] = {"check": "allreduce", "name": "all_reduce", "where": "/home/user/train.py:88"}
    return Step(seq=seq, detail="float32 [8]", entered_at=1.0, **{**given, **fields})


def rank(of: World, number: int, *steps: Step, **fields: Any) -> RankEvidence:
    return RankEvidence(
        rank=number, node=of.node_of(number), pid=100 + number, began=True, state="S", steps=steps, **fields
    )


def run(
    of: World, evidence: Sequence[RankEvidence], *readings: Reading, check: str = "allreduce", **fields: Any
) -> Recording:
    trial = trial_of(*evidence, ranks=tuple(range(of.world_size)), judged_check=check, **fields)
    return Recording(world=of, trials=(trial,), readings=readings)


def judged(recording: Recording) -> list[Finding]:
    return [finding for rule in TRIAL_RULES for finding in rule.apply(recording)]


def silence(observer: int, node: int) -> Reading:
    fact = SilenceFact(node=node, answer="timed_out", silent_s=6.2)
    return collected("roll_call", fact, observer)


def exchange(peer: int, **fields: Any) -> Step:
    return step(1, check="p2p", name="send_recv", peers=(peer,), **fields)


# --- silent nodes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [None, RESET], ids=["ranks wait", "ranks report a broken connection"])
def test_ranks_that_only_wait_for_a_silent_node_are_not_evaluated(raised: Raised | None):
    four = world(4)
    waiting = [rank(four, number, step(), raised=raised) for number in (0, 1, 3)]
    outcome = "broken" if raised else "stuck"

    assert judged(run(four, waiting, lost_nodes=(2,), outcome=outcome)) == []


def test_trial_without_readings_of_a_silent_node_is_not_evaluated():
    two = world(2)
    mine = [rank(two, 1, step())]

    assert judged(run(two, mine, silence(1, 0))) == []


def test_stopped_rank_of_a_node_silent_in_another_trial_is_reported():
    two = world(2)
    ranks = [rank(two, 0, step()), rank(two, 1, step()).model_copy(update={"state": "T"})]

    assert [one.code for one in judged(run(two, ranks, silence(0, 1)))] == ["DD611"]


def test_ranks_whose_peer_is_gone_are_never_blamed():
    three = world(3)
    broken = [rank(three, number, step(), raised=RESET) for number in (0, 1)]
    gone = rank(three, 2, step(), exited_at=0.9, exit_code=-9)

    found = judged(run(three, [*broken, gone], outcome="broken"))

    assert [(one.code, [culprit.rank for culprit in one.culprits]) for one in found] == [("DD612", [2])]


# --- hangs over several nodes ---------------------------------------------------------------------


def test_rank_that_never_entered_is_reported_with_its_host_and_gpu():
    four = world(4, nproc=2, backend="nccl")
    gpus = {"kind": "gpus/1", "gpus": [{"uuid": "GPU-a", "index": 0}, {"uuid": "GPU-b", "index": 1}]}
    group = group_fact("GPU-b")
    known = (
        Reading(check="gpus", status=Status.COLLECTED, node=2, fact=gpus),
        Reading(check="process_group", status=Status.COLLECTED, node=2, rank=5, fact=group),
    )
    waits = [rank(four, number, step(17)) for number in range(8) if number != 5]
    late = rank(four, 5, step(16, left_at=1.1), stack=("/home/user/train.py:88 in main",))

    found = hangs.never_entered.apply(run(four, [*waits, late], *known))

    assert len(found) == 1
    assert found[0].title == "Rank 5 (node2, GPU1) never entered all_reduce #17: stuck at train.py:88 in main()"
    assert found[0].detail.startswith("Ranks 0-4, 6, 7 wait for it in check allreduce.")


def test_collective_that_no_rank_left_blames_no_rank_and_counts_the_nodes():
    four = world(4)

    found = hangs.nobody_left.apply(run(four, [rank(four, number, step()) for number in range(4)]))

    assert found[0].title.startswith("All 4 ranks on 4 nodes entered all_reduce #3")
    assert found[0].culprits == ()


def stuck_with_node_2(of: World, rest: Sequence[RankEvidence]) -> Recording:
    """Ranks 0 and 1 each hang with rank 2, in two trials."""
    trials: list[TrialRecord] = []
    for other in (0, 1):
        ends = [rank(of, other, exchange(2)), rank(of, 2, exchange(other))]
        trials.extend(run(of, [*ends, *rest], check="p2p").trials)
    return Recording(world=of, trials=tuple(trials))


def test_links_that_share_a_node_blame_it_if_another_pair_passed():
    four = world(4)
    passed = {
        "kind": "p2p/1",
        "pairs": [{"peer": 1, "wrong_bytes": 0, "latency_us": 20.0, "bandwidth_gb_per_s": 1.0, "size_bytes": 1 << 20}],
    }
    reading = Reading(check="p2p", status=Status.COLLECTED, rank=0, fact=passed)

    recording = stuck_with_node_2(four, []).model_copy(update={"readings": (reading,)})
    found = links.pair.apply(recording)

    assert [[(c.kind, c.node) for c in one.culprits] for one in found] == [[("node", "node2")]]


def test_links_that_share_a_node_stay_pairs_if_no_other_pair_passed():
    found = links.pair.apply(stuck_with_node_2(world(3), []))

    assert [[(c.kind, c.node, c.peer_node) for c in one.culprits] for one in found] == [
        [("pair", "node0", "node2")],
        [("pair", "node1", "node2")],
    ]


def test_one_rank_of_a_node_is_blamed_if_only_its_links_hang():
    two = world(2, nproc=2)
    trials = [
        trial
        for other in (2, 3)
        for trial in run(two, [rank(two, 0, exchange(other)), rank(two, other, exchange(0))], check="p2p").trials
    ]
    passed = {
        "kind": "p2p/1",
        "pairs": [{"peer": 3, "wrong_bytes": 0, "latency_us": 20.0, "bandwidth_gb_per_s": 1.0, "size_bytes": 1 << 20}],
    }
    reading = Reading(check="p2p", status=Status.COLLECTED, rank=1, fact=passed)

    found = links.pair.apply(Recording(world=two, trials=tuple(trials), readings=(reading,)))

    assert [[(c.kind, c.rank) for c in one.culprits] for one in found] == [[("rank", 0)]]
