"""Values that another node sends, and the handling of values that no ddp-doctor node would send."""

from typing import Any

import pytest

from ddp_doctor.agents import messages
from ddp_doctor.agents.framing import JUNK, Unreadable
from ddp_doctor.agents.messages import Begin, NodeReport, Opening
from ddp_doctor.agents.store_client import UNREADABLE
from ddp_doctor.facts.cluster import SilenceFact
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Node, World
from ddp_doctor.model.trial import RankEvidence, TrialRecord

WORLD = World(
    nnodes=2,
    nproc_per_node=2,
    world_size=4,
    nodes=(Node(node_rank=0, hostname="node0"), Node(node_rank=1, hostname="node1")),
)
SHAPES: list[Any] = [UNREADABLE, None, 1, "x", [], [1], {}, {"a": 1}, [{"check": 1}], {"do": "end"}, {"do": []}]


def _node_report(**fields: Any) -> dict[str, Any]:
    return NodeReport(hostname="node1", nnodes=2, claimed_rank=1).model_dump(mode="json") | fields


def _reading(**fields: Any) -> dict[str, Any]:
    return Reading(check="memory", status=Status.ABSENT, node=1).model_dump(mode="json") | fields


def _result(record: dict[str, Any], *readings: dict[str, Any]) -> dict[str, Any]:
    return {"record": TrialRecord.model_validate({"trial": "t0", **record}), "readings": list(readings)}


@pytest.mark.parametrize("junk", SHAPES, ids=lambda junk: "unreadable" if junk is UNREADABLE else repr(junk))
def test_values_of_another_shape_are_unreadable(junk: Any):
    for look in (
        messages.node_report,
        messages.order,
        lambda one: messages.read(Opening.model_validate, one, "no opening"),
        lambda one: messages.trial_part(one, 1, WORLD, "t0"),
    ):
        with pytest.raises(Unreadable):
            look(junk)
    assert messages.sender(junk) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"claimed_rank": 2},
        {"claimed_rank": -1},
        {"nnodes": 0},
        {"nnodes": 10**9},
        {"port": 70_000},
        {"hostname": "node1\x1b[2J"},
        {"hostname": "n" * 300},
        {"version": "1.0\r\n"},
        {"advertised": "a name"},
        {"met_at": "10.0.0.1\x00"},
        {"world": {"nproc_per_node": 0}},
        {"world": {"nproc_per_node": 10**9}},
        {"world": {"nodes": [{}, {}]}},
        {"readings": [_reading(node=0, rank=3)]},
    ],
    ids=repr,
)
def test_node_report_that_no_node_would_write_is_unreadable(fields: dict[str, Any]):
    assert messages.node_report(_node_report()).hostname == "node1"
    with pytest.raises(Unreadable):
        messages.node_report(_node_report(**fields))


def test_sender_of_a_report_of_another_release_is_known_by_name():
    assert messages.sender(_node_report(nnodes="two")) == "node1"
    assert messages.sender({"hostname": "node1\x1b[2J"}) == ""


def test_a_fact_of_another_shape_fails_its_check_and_leaves_the_other_readings():
    odd = _reading(status="collected", fact={"kind": SilenceFact.KIND, "node": "two"})

    first, second = messages.readings([odd, _reading()], 1, WORLD)

    assert (first.status, first.fact) == (Status.FAILED, None)
    assert first.reason == f"the node sent {JUNK}"
    assert second.status is Status.ABSENT


def test_node_that_does_not_exist_is_removed_from_a_fact():
    told = _reading(status="collected", fact={"kind": SilenceFact.KIND, "node": 7})

    (reading,) = messages.readings([told], 1, WORLD)

    assert reading.fact is None


def test_fact_of_an_unknown_kind_stays_unchanged():
    told = _reading(status="collected", fact={"kind": "weather/1", "sun": True})

    (reading,) = messages.readings([told], 1, WORLD)

    assert reading.fact == {"kind": "weather/1", "sun": True}


@pytest.mark.parametrize("fields", [{"node": 0}, {"node": 7}, {"rank": 1}, {"rank": 4}], ids=repr)
def test_reading_of_another_node_is_refused(fields: dict[str, Any]):
    with pytest.raises(Unreadable):
        messages.readings([_reading(**fields)], 1, WORLD)


@pytest.mark.parametrize(
    "record",
    [
        {"trial": "t1"},
        {"evidence": (RankEvidence(rank=0, node=0),)},
        {"evidence": (RankEvidence(rank=1, node=1),)},
        {"lost_nodes": (2,)},
        {"outcome": "won"},
    ],
    ids=repr,
)
def test_trial_with_other_ranks_is_unreadable(record: dict[str, Any]):
    told = {"record": {"trial": "t0", **record}, "readings": []}

    with pytest.raises(Unreadable):
        messages.trial_part(told, 1, WORLD, "t0")


def test_a_trial_of_the_nodes_own_ranks_is_taken():
    told = _result({"evidence": (RankEvidence(rank=3, node=1),)}, _reading(rank=2))

    part = messages.trial_part(told, 1, WORLD, "t0")

    assert (part.record.evidence[0].rank, part.readings[0].rank) == (3, 2)


def test_a_beginning_without_a_place_for_each_node_is_unreadable():
    begin: dict[str, Any] = {
        "run_id": "run",
        "started_at": "",
        "secret": "s",
        "world": WORLD,
        "ids": {0: 0, 1: 1},
        "contacts": [
            {"node": node, "hostname": f"node{node}", "port": 1, "advertised": "", "met_at": ""} for node in range(2)
        ],
        "options": {},
        "checks": [],
    }
    assert messages.read(Begin.model_validate, begin, "no beginning").ids == {0: 0, 1: 1}
    for fields in ({"ids": {0: 0}}, {"contacts": begin["contacts"][:1]}, {"ids": {0: 0, 5: 1}}):
        with pytest.raises(Unreadable):
            messages.read(Begin.model_validate, begin | fields, "no beginning")
