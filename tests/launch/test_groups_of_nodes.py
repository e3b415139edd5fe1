"""Concurrent tests of several groups of nodes: one of several real agents orders them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launch import isolating
from tests.launch.agents import Agent, reports_of
from tests.once import free_port

pytestmark = pytest.mark.ranks

ROUNDS = [
    [[0], [1], [2], [3]],
    [[0, 1, 2, 3]],
    [[1, 3], [0, 2]],
    [[1, 2, 3]],  # without the head
]


def test_disjoint_groups_of_nodes_run_at_once_without_affecting_the_verdict(tmp_path: Path):
    tests, reports, left = _run(tmp_path, ROUNDS, "--nproc-per-node", "1")

    assert [(test["round"], test["nodes"], test["outcome"]) for test in tests] == [
        (number, nodes, "passed") for number, groups in enumerate(ROUNDS) for nodes in groups
    ], tests
    assert min(test["bytes_per_s"] for test in tests) > 1e6
    titles = [finding["title"] for report in reports for finding in report["findings"]]
    assert [report["verdict"] for report in reports] == ["healthy"] * 4, titles
    assert left == []


def test_isolation_reports_its_progress_and_tests_no_group_after_its_budget(tmp_path: Path):
    port = free_port()
    options = (
        *("--isolate", "--only", "isolation", "--nproc-per-node", "1", "--repeat", "20"),
        *("--budget", "5", "--join-timeout", "120"),
    )
    agents = [Agent(tmp_path, port, 2, node, *options) for node in range(2)]
    reports, _ = reports_of(agents)

    assert "isolation: round 1, 2 groups of 1 node" in agents[0].words()
    for report in reports:
        assert report["verdict"] == "unsure"
        assert "--isolate (the time budget was used up)" in report["summary"]


def _run(folder: Path, rounds: Any, *options: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    port, seen = free_port(), folder / "tests.json"
    told = {"DDP_DOCTOR_GROUPS": json.dumps(rounds), "DDP_DOCTOR_GROUP_TESTS": str(seen)}
    options = ("--only", "process_group", "--join-timeout", "120", *options)  # four import torch at once
    agents = [
        Agent(folder, port, 4, 0, *options, module=isolating.__name__, more_env=told),
        *(Agent(folder, port, 4, node, *options) for node in (1, 2, 3)),
    ]
    reports, left = reports_of(agents)
    return json.loads(seen.read_text()), reports, left
