"""The nodes that the head admits at node check-in, without a store."""

import time
from typing import Any

import pytest

from ddp_doctor.agents.arrivals import Arrivals
from ddp_doctor.agents.messages import NodeReport, ranked
from ddp_doctor.agents.store_client import HEAD, Beat
from ddp_doctor.starters.place import Place


class _Client:
    """A client whose requested values have all arrived."""

    my_id, error = HEAD, None

    def __init__(self, *node_reports: Any) -> None:
        self.values = {f"join/{number}": node_report for number, node_report in enumerate(node_reports, 1)}
        self.beats: dict[int, Beat] = {}
        self.silent: set[int] = set()

    def watch(self, _key: str) -> None:
        pass

    def follow(self, _ids: list[int]) -> None:
        pass

    def value(self, key: str) -> Any:
        return self.values.get(key)

    def wait(self, _ready: object, _timeout_s: float) -> bool:
        return True

    def silent_s(self, one: int) -> float:
        return 100.0 if one in self.silent else 0.0


def _node_report(hostname: str, nnodes: int = 2, claimed_rank: int | None = None) -> dict[str, Any]:
    return NodeReport(hostname=hostname, nnodes=nnodes, claimed_rank=claimed_rank).model_dump(mode="json")


def _head(client: _Client, nnodes: int = 2) -> Arrivals:
    place = Place(nnodes, 0, None, ("node0", 1), (), "plain", is_started_by_us=False)
    stand_in: Any = client
    node_reports = {HEAD: NodeReport(hostname="node0", nnodes=nnodes, claimed_rank=0)}
    return Arrivals(stand_in, place, time.monotonic() + 60.0, tuple, node_reports)


def test_first_nodes_to_arrive_take_part_if_there_are_too_many():
    head = _head(_Client(_node_report("node1"), _node_report("node2"), _node_report("node3")))

    head.admit()

    assert head.outcome() == "met"
    assert {rank: head.node_reports[one].hostname for rank, one in ranked(head.node_reports).items()} == {
        0: "node0",
        1: "node1",
    }


def test_node_that_left_makes_room_for_the_next():
    client = _Client(_node_report("node1"), _node_report("node2"), _node_report("node3"))
    head = _head(client, nnodes=3)
    head.admit()
    client.silent = {1}

    head.admit()
    head.admit()

    assert [node_report.hostname for node_report in head.node_reports.values()] == ["node0", "node2", "node3"]


def test_invalid_node_report_is_ignored():
    head = _head(_Client([1], {"hostname": 3}, _node_report("node1")))

    head.admit()

    assert head.outcome() == "met"


def test_nodes_that_expect_more_nodes_are_all_admitted_and_counted():
    head = _head(_Client(_node_report("node1", 3), _node_report("node2", 3)))

    head.admit()

    assert len(head.node_reports) == 3
    assert head.outcome() == "disagree"


@pytest.mark.parametrize(
    ("waited_s", "others", "outcome"),
    [(4.0, (4, 3), "disagree"), (4.0, (3,), None), (7.0, (3,), "disagree")],
    ids=["one is alone in it", "nobody knows yet who is", "nobody else came"],
)
def test_node_with_a_different_number_of_nodes_waits_for_others(waited_s, others, outcome):
    head = _head(_Client(*(_node_report(f"node{n}", told) for n, told in enumerate(others, 1))), nnodes=4)
    head.admit()
    head._agreed_at -= waited_s

    assert head.outcome() == outcome


@pytest.mark.parametrize(
    ("waited_s", "came", "outcome"),
    [(2.0, ("node1", "node2", "node3"), "duplicate"), (2.0, ("node1", "node2"), None), (7.0, ("node1",), "duplicate")],
    ids=["all are here", "one is still to come and would not hear why", "nobody else came"],
)
def test_all_early_claimants_of_a_node_rank_get_an_answer(waited_s, came, outcome):
    head = _head(_Client(*(_node_report(host, 4, claimed_rank=0) for host in came)), nnodes=4)
    head.admit()
    head._rivals_since -= waited_s

    assert head.outcome() == outcome
