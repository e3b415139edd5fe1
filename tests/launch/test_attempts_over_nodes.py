"""Trials of remedies over several nodes: one of several real agents runs them for all."""

import json

import pytest

from tests.launch import attempting
from tests.launch.agents import Agent, reports_of
from tests.once import free_port

pytestmark = pytest.mark.ranks


def test_trials_reach_some_ranks_or_all_with_each_nodes_own_settings_and_end_everywhere(tmp_path):
    port, seen = free_port(), tmp_path / "attempts.json"
    options = ("--only", "process_group", "--nproc-per-node", "1")
    told = {"DDP_DOCTOR_ATTEMPTS": str(seen)}
    agents = [
        Agent(tmp_path, port, 3, 0, *options, module=attempting.__name__, more_env=told),
        *(Agent(tmp_path, port, 3, node, *options) for node in (1, 2)),
    ]
    reports, left = reports_of(agents)
    pair, all_ranks, one_node, too_late, again, alone = json.loads(seen.read_text())

    assert [one["outcome"] for one in (pair, all_ranks, one_node, too_late, again)] == [
        "passed", "passed", "failed", "hung", "passed",
    ]  # fmt: skip
    assert alone == {"outcome": "finished", "ranks": [0, 1, 2]}
    assert min(pair["bytes_per_s"], all_ranks["bytes_per_s"]) > 0
    assert one_node["reason"] == "RuntimeError: Unable to find address for: eth9"
    assert [report["verdict"] for report in reports] == ["healthy"] * 3  # these trials do not affect the verdict
    assert left == []
