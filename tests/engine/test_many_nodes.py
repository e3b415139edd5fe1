"""A node's part of a multi-node run that ends before the tests begin; no ranks are started."""

import os

import pytest

from ddp_doctor.agents.agent_group import Lost
from ddp_doctor.app import judge
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.node_run.many_nodes import ManyNodes, allowed
from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.engine.plan import Plan
from ddp_doctor.model.choices import Where
from ddp_doctor.model.recording import Node, Options, Recording, World
from ddp_doctor.starters.place import Place
from ddp_doctor.starters.request import RunRequest
from tests.recordings import load

OF_RANKS = [check for check in CHECKS if check.where is Where.RANK]


def _session() -> Session:
    place = Place(2, 0, None, ("127.0.0.1", 1), (), "plain", is_started_by_us=False)
    return Session(RunRequest(Options(), dict(os.environ), place=place))


def _many(session: Session) -> ManyNodes:
    return ManyNodes(session, Plan(()), Recording(run_id="test"), {})


def test_run_interrupted_before_the_check_in_closes_silently():
    with _session() as session:
        many = _many(session)
        many.interrupted()
        many.close()

    assert many.recording.interrupted


def test_lost_store_makes_the_run_unsure_whatever_was_read_before():
    with _session() as session:
        many = _many(session)
        many._broken_off("the control store broke off")

    assert judge(many.so_far()).report.verdict.value == "unsure"


def test_silent_node_is_called_by_its_name():
    nodes = (Node(node_rank=0, hostname="alpha"), Node(node_rank=1, hostname="beta"))
    with _session() as session:
        many = _many(session)
        many.recording = Recording(run_id="test", world=World(nnodes=2, nodes=nodes))
        many._note_gone(Lost((1,)))

    assert session.partial.readings[-1].reason == "no word of beta to the end"


@pytest.mark.parametrize(
    ("recording", "code", "left"),
    [
        ("connectivity/node-50-ms-away", "DD534", ["process_group"]),
        ("connectivity/node-loses-packets", "DD536", ["process_group"]),
        ("connectivity/node-at-100-mbit", "DD533", ["process_group"]),
        ("connectivity/all-ephemeral-ports-dropped", "DD530", []),
    ],
)
def test_ranks_behind_a_bad_path_only_meet_and_other_checks_are_not_run(recording, code, left):
    with _session() as session:
        many = _many(session)
        many.recording = load(recording)
        kept = allowed(many, OF_RANKS)
        not_run = many.so_far().not_run

    assert [check.id for check in kept] == left
    assert {one.check for one in not_run} >= {check.id for check in OF_RANKS} - set(left)
    assert all(code in left_out.reason for left_out in session.partial.not_run)


@pytest.mark.parametrize(
    "recording", ["rdma/image-without-libibverbs", "rdma/container-without-devices", "consistency/no-gpu-on-one-node"]
)
def test_ranks_start_after_errors_that_only_slow_them_or_leave_gloo(recording):
    with _session() as session:
        many = _many(session)
        many.recording = load(recording)

        assert allowed(many, OF_RANKS) == OF_RANKS
