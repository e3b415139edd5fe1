"""The ranks of nodes after all nodes have checked in, and the world they form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ddp_doctor.agents.messages import NodeReport, ranked, world_of
from ddp_doctor.model.recording import Node, World


def _report(name: str, rank: int | None = None, order: int | None = None, **world: object) -> NodeReport:
    fields = {"nproc_per_node": 1, "backend": "gloo", "nodes": (Node(hostname=name),)} | world
    return NodeReport(hostname=name, nnodes=6, claimed_rank=rank, order=order, world=World.model_validate(fields))


def test_nodes_without_a_rank_are_numbered_by_their_arrival():
    assert ranked({0: _report("head", 0), 1: _report("first"), 2: _report("second")}) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("wrong", [{"claimed_rank": -1}, {"port": 65536}, {"world": []}, {"readings": [{}]}])
def test_invalid_node_report_is_refused(wrong):
    with pytest.raises(ValidationError):
        NodeReport.model_validate({"hostname": "node0", "nnodes": 2} | wrong)


def test_a_claimed_rank_is_kept_and_the_others_fill_the_gaps():
    assert ranked({0: _report("head", 0), 1: _report("late"), 2: _report("claims one", 1)}) == {0: 0, 1: 2, 2: 1}


def test_the_launchers_order_counts_more_than_the_arrival():
    node_reports = {0: _report("head", 0), 1: _report("rank 16", order=16), 2: _report("rank 8", order=8)}

    assert ranked(node_reports) == {0: 0, 1: 2, 2: 1}


@given(st.permutations(range(6)), st.sets(st.integers(1, 5)))
def test_every_node_gets_one_rank_whatever_the_nodes_claim(arrivals: list[int], claiming: set[int]):
    node_reports = {0: _report("head", 0)}
    for rank in arrivals:
        if rank:
            node_reports[len(node_reports)] = _report(f"node{rank}", rank if rank in claiming else None)

    ranks = ranked(node_reports)

    assert sorted(ranks) == list(range(6))
    assert sorted(ranks.values()) == list(range(6))
    assert all(node_reports[ranks[rank]].claimed_rank == rank for rank in claiming)


def test_a_world_of_unequal_nodes_has_the_ranks_of_each():
    node_reports = {0: _report("node0", 0), 1: _report("node1", 1, nproc_per_node=2)}

    world = world_of(node_reports, 2, (), "plain")

    assert world.world_size == 3
    assert list(world.ranks_of(1)) == [1, 2]
    assert world.node_of(2) == 1


def test_one_node_without_nccl_makes_it_a_gloo_world():
    node_reports = {0: _report("node0", 0, backend="nccl"), 1: _report("node1", 1)}

    assert world_of(node_reports, 2, (), "plain").backend == "gloo"


def test_absent_node_has_its_expected_name_and_the_ranks_of_the_first():
    world = world_of({0: _report("node0", 0, nproc_per_node=8)}, 2, ("node0", "node1"), "slurm")

    assert (world.world_size, world.hostname(1)) == (16, "node1")
