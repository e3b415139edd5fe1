"""Agents of several nodes, as real processes on this host: they meet, work, and end together."""

import os
import signal

import psutil
import pytest

from tests.lab.hosts import WITHOUT_DDP
from tests.launch.agents import Agent, Start, codes
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.ranks

#: Options of a run that still measures long after it has begun with allreduce.
LONG = ("--level", "thorough", *WITHOUT_DDP, "--skip", "torchrun")


def test_two_nodes_meet_and_both_end_with_the_heads_healthy_report(start: Start):
    head, other = start(2, 0, *WITHOUT_DDP), start(2, 1, *WITHOUT_DDP)

    reports = head.report(), other.report()

    assert [agent.process.returncode for agent in (head, other)] == [0, 0]
    assert reports[0] == reports[1]
    assert codes(reports[0]) == []
    world = reports[0]["world"]
    assert (world["nnodes"], world["world_size"], len(world["nodes"])) == (2, 2, 2)
    assert {check["id"]: check["status"] for check in reports[0]["checks"]}["p2p"] == "passed"
    assert "The full report is on the head node" in other.said.read_text()


def test_a_node_that_never_comes_is_missing_by_its_node_rank(start: Start):
    other = start(3, 1, *WITHOUT_DDP)
    other.wait_for("no process listens yet")
    head = start(3, 0, "--join-timeout", "10", *WITHOUT_DDP)

    reports = head.report(), other.report()

    assert [agent.process.returncode for agent in (head, other)] == [1, 1]
    assert [codes(report) for report in reports] == [["DD516"], ["DD516"]]
    found = reports[0]["findings"][0]
    assert ([node["node_rank"] for node in found["missing"]], found["culprits"]) == ([2], [])
    assert found["title"].endswith("within 10 s")  # as asked, however long the import of torch took before
    assert "--join-timeout 10 --level quick" in found["remedies"][0]["commands"][0]
    became = {check["id"]: check["status"] for check in reports[0]["checks"]}
    assert {became[name] for name in ("connectivity", "process_group", "allreduce", "p2p")} == {"skipped"}


def test_two_agents_with_one_node_rank_both_report_it(start: Start):
    head = start(3, 0, "--join-timeout", "20", *WITHOUT_DDP)
    twins = start(3, 1, *WITHOUT_DDP, name="one"), start(3, 1, *WITHOUT_DDP, name="other")

    for report in (agent.report() for agent in (head, *twins)):
        assert codes(report) == ["DD515"]
        assert [culprit["name"] for culprit in report["findings"][0]["culprits"]] == ["--node-rank"]
    assert head.process.returncode == 1


def test_restarted_agent_takes_its_own_place(start: Start):
    head = start(2, 0, *WITHOUT_DDP)
    head.wait_for("importing torch")
    first = start(2, 1, *WITHOUT_DDP, name="first")
    first.wait_for("importing torch")
    first.signal(signal.SIGINT)

    second = start(2, 1, *WITHOUT_DDP, name="second")

    assert codes(head.report()) == []
    assert (head.process.returncode, second.report()["verdict"]) == (0, "healthy")
    assert first.process.wait(LIMIT_S) == 130


def test_nodes_with_different_numbers_of_nodes_end_immediately(start: Start):
    head, other = start(2, 0, *WITHOUT_DDP), start(3, 1, *WITHOUT_DDP)

    for report in (head.report(), other.report()):
        assert codes(report) == ["DD518"]
        assert [culprit["name"] for culprit in report["findings"][0]["culprits"]] == ["--nnodes"]


def test_when_the_head_is_killed_the_others_name_it_and_end(start: Start):
    agents = [start(3, rank, *LONG) for rank in range(3)]
    agents[1].wait_for("allreduce")

    agents[0].signal(signal.SIGKILL)

    for survivor in agents[1:]:
        report = survivor.report()
        assert survivor.process.returncode == 1
        assert codes(report) == ["DD540"]
        assert [culprit["node_rank"] for culprit in report["findings"][0]["culprits"]] == [0]


def test_an_interrupt_on_one_node_ends_the_run_on_all(start: Start):
    agents = [start(3, rank, *LONG) for rank in range(3)]
    agents[1].wait_for("allreduce")

    agents[1].signal(signal.SIGINT)

    assert [agent.process.wait(LIMIT_S) for agent in agents] == [130, 130, 130]
    assert codes(agents[0].report()) == []


def test_head_interrupted_at_check_in_releases_the_nodes_that_came(start: Start):
    agents = [start(3, rank, *WITHOUT_DDP) for rank in range(2)]
    agents[1].wait_for("2 of 3 nodes here")

    agents[0].signal(signal.SIGINT)

    assert [agent.process.wait(LIMIT_S) for agent in agents] == [130, 130]
    reasons = {check["id"]: check["reason"] for check in agents[0].report()["checks"]}
    assert reasons["roll_call"].startswith("interrupted after")
    assert reasons["roll_call"].endswith("2 of 3 nodes here")
    assert reasons["p2p"] == "interrupted before it began"


def test_a_stopped_agent_is_named_by_the_others(start: Start):
    agents = [start(2, rank, *LONG) for rank in range(2)]
    agents[0].wait_for("allreduce")

    agents[1].signal(signal.SIGSTOP)
    report = agents[0].report()
    agents[1].signal(signal.SIGCONT)

    assert codes(report) == ["DD540"]
    assert [(one["kind"], one["node_rank"]) for one in report["findings"][0]["culprits"]] == [("node", 1)]
    assert agents[1].process.wait(LIMIT_S) == 1
    assert not psutil.pid_exists(agents[1].process.pid)


def _end_helper(agent: Agent, name: str, number: signal.Signals) -> None:
    (pid,) = (line.split()[0] for line in agent.alive() if line.endswith(name))
    os.kill(int(pid), number)


@pytest.mark.parametrize(
    ("whose", "helper", "number"),
    [
        (1, "ddp-doctor:post", signal.SIGSTOP),
        (0, "ddp-doctor:ctl", signal.SIGKILL),
        (0, "ddp-doctor:ctl", signal.SIGSTOP),
        (0, "ddp-doctor:fork", signal.SIGSTOP),
    ],
)
def test_killed_or_stopped_helper_ends_the_run_with_no_node_healthy(
    start: Start, whose: int, helper: str, number: signal.Signals
):
    agents = [start(2, rank, *LONG) for rank in range(2)]
    agents[0].wait_for("allreduce")

    _end_helper(agents[whose], helper, number)

    reports = [agent.report() for agent in agents]
    assert "healthy" not in {report["verdict"] for report in reports}
    assert (agents[whose].process.returncode, reports[whose]["verdict"], codes(reports[whose])) == (3, "unsure", [])
    blamed = [
        culprit
        for report in reports
        for finding in report["findings"]
        if finding["severity"] != "info"  # such as a busy host
        for culprit in finding["culprits"]
    ]
    assert {culprit["node_rank"] for culprit in blamed if culprit["kind"] == "node"} <= {whose}


def test_node_that_leaves_during_node_checks_is_not_a_blocked_path(start: Start):
    head, other = start(2, 0), start(2, 1)
    head.wait_for("consistency")

    other.signal(signal.SIGINT)

    assert codes(head.report()) == []
    assert (head.process.returncode, other.process.wait(LIMIT_S)) == (130, 130)
