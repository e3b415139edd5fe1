"""Agents whose store is written into by others: real agents, and a real client that is none."""

import json
import socket
import zlib
from datetime import timedelta
from typing import Any

import pytest

from ddp_doctor.agents.framing import JUNK
from ddp_doctor.ranks import control_store
from ddp_doctor.ranks.store import connect
from tests.lab.hosts import WITHOUT_DDP
from tests.launch import garbling
from tests.launch.agents import Agent, Start, codes
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks


@pytest.fixture
def start(start: Start) -> Start:
    return lambda claims, *options, **more: start(2, claims, *WITHOUT_DDP, *options, **more)


def _head_and_stranger(start: Start, port: int, *options: str) -> tuple[Agent, Any]:
    """A head, and a client of its store as soon as there is one: the join timeout starts then.

    A client that already waits for the store pauses longer and longer between attempts (torch 2.13: 17 s after 40 s).
    """
    head = start(0, *options)
    with socket.socket() as line:
        wait_until(lambda: line.connect_ex(("127.0.0.1", port)) == 0, f"a listener on port {port}")
    return head, connect("127.0.0.1", port, control_store.PREFIX, timedelta(seconds=LIMIT_S))


def _put(store: Any, key: str, value: Any) -> None:
    store.set(f"{key}/0", zlib.compress(json.dumps(value).encode()))
    store.set(key, b'{"parts": 1}')


def _says_nothing_of_its_own_inside(*agents: Agent) -> None:
    for agent in agents:
        said = agent.words() + agent.json.read_text()
        words = ("Traceback", "pydantic", "validation error", "\\u001b", "\x1b[2J")
        assert not [word for word in words if word in said]


def test_client_that_is_not_a_node_is_ignored_at_check_in(start: Start, port: int):
    head, store = _head_and_stranger(start, port)
    for junk in (b"GET / HTTP/1.1", b'{"parts": 5}', b"[" * 50_000, b'{"hostname": {"a": "\\u001b[2J"}}'):
        store.set(f"join/{store.add('arrivals', 1)}", junk)

    other = start(1)

    assert (head.report()["verdict"], other.report()["verdict"]) == ("healthy", "healthy")
    _says_nothing_of_its_own_inside(head, other)


def test_node_of_another_release_is_reported_as_unreadable(start: Start, port: int):
    head, store = _head_and_stranger(start, port, "--join-timeout", "10")
    _put(store, f"join/{store.add('arrivals', 1)}", {"hostname": "node7", "nnodes": "two", "version": "9.0"})

    report = head.report()

    assert codes(report) == ["DD516"]
    (finding,) = (one for one in report["findings"] if one["code"] == "DD516")
    assert finding["title"].startswith("node7 sent unreadable messages")
    assert (report["verdict"], head.process.returncode) == ("unsure", 3)
    _says_nothing_of_its_own_inside(head)


def test_unreadable_results_make_the_run_unsure_without_a_culprit(start: Start):
    head, other = start(0), start(1, module=garbling.__name__)
    report = head.report()

    assert (report["verdict"], head.process.returncode, other.process.wait(LIMIT_S)) == ("unsure", 3, 3)
    assert codes(report) == []
    assert f"sent {JUNK}" in json.dumps(report)
    _says_nothing_of_its_own_inside(head, other)


def test_invalid_order_ends_the_run_unsure_on_both_nodes(start: Start, port: int):
    head, store = _head_and_stranger(start, port)
    for key in ("order/2", "order/3"):  # one of them is a trial, which the head is late to order
        _put(store, key, {"do": "trial", "record": "\x1b[2J"})

    other = start(1)
    reports = head.report(), other.report()

    assert "healthy" not in {report["verdict"] for report in reports}
    assert [codes(report) for report in reports] == [[], []]
    assert f"the head node sent {JUNK}" in json.dumps(reports[1])
    _says_nothing_of_its_own_inside(head, other)


def test_trial_with_settings_that_load_code_is_refused_and_reported(start: Start, port: int):
    """test_trials_that_are_refused.py tests the other reasons."""
    head, store = _head_and_stranger(start, port)
    settings = [{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]
    record = {"trial": "t9", "ranks": [0, 1], "reproducer": {"kind": "meet"}, "limit_s": 6.0, "settings": settings}
    order = {"do": "trial", "record": record, "checks": [], "skip_pairs": []}
    for key in ("order/2", "order/3"):
        _put(store, key, order)

    other = start(1)
    reports = head.report(), other.report()

    said = json.dumps(reports[1])
    assert "this node refuses a test that the head node ordered: tests must" in said
    assert "tests must not set 'LD_PRELOAD'" in said
    assert "healthy" not in {report["verdict"] for report in reports}
    assert [codes(report) for report in reports] == [[], []]
    _says_nothing_of_its_own_inside(head, other)


def test_unknown_end_of_the_trial_ends_the_run_unsure(start: Start, port: int):
    head, store = _head_and_stranger(start, port)
    store.set("stop/t0", b'"\\u001b[2Jwon"')

    other = start(1)
    reports = head.report(), other.report()

    assert "healthy" not in {report["verdict"] for report in reports}
    assert [codes(report) for report in reports] == [[], []]
    _says_nothing_of_its_own_inside(head, other)


def _of(run_id: str, node_rank: int) -> dict[str, str]:
    """The environment of torchrun's worker on one node of two."""
    return {
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": "2",
        "RANK": str(node_rank),
        "WORLD_SIZE": "2",
    }


def test_nodes_of_another_launch_do_not_take_part_and_are_not_blamed(start: Start, port: int):
    head = start(0, "--join-timeout", "600", name="a0", more_env=_of("train", 0))  # two other runs end before it
    head.wait_for("1 of 2 nodes here")
    others = [start(rank, name=f"b{rank}", more_env=_of("evaluate", rank)) for rank in range(2)]
    reports = [other.report() for other in others]

    last = start(1, name="a1", more_env=_of("train", 1))

    assert last.process.wait(LIMIT_S) == 0, head.words() + last.words()
    assert head.report()["verdict"] == "degraded"  # for its settings of the launch, which are not whole
    for report in reports:
        errors = [one["code"] for one in report["findings"] if one["severity"] == "error"]
        assert (report["verdict"], errors) == ("unhealthy", ["DD514"])
        (finding,) = (one for one in report["findings"] if one["code"] == "DD514")
        assert "torchrun's run train" in finding["title"]
        assert "torchrun's run evaluate" in finding["title"]
        assert str(port) in finding["title"]
        assert [(one["kind"], one["node_rank"]) for one in finding["culprits"]] == [("setting", None)]
        assert "another port" in finding["remedies"][0]["summary"]


def test_two_jobs_that_claim_one_node_rank_are_reported_without_a_rank(start: Start):
    head = start(0, name="a0", more_env={"SLURM_JOB_ID": "1"})
    head.wait_for("1 of 2 nodes here")
    other = start(0, name="b0", more_env={"SLURM_JOB_ID": "2"})

    for report in (head.report(), other.report()):
        assert codes(report) == ["DD514"]
        (finding,) = (one for one in report["findings"] if one["code"] == "DD514")
        assert "SLURM job 1" in finding["title"]
        assert "SLURM job 2" in finding["title"]
        assert [(one["kind"], one["node_rank"]) for one in finding["culprits"]] == [("setting", None)]
