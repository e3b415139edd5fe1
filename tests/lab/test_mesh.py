"""A mesh over two hosts: an axis that crosses a slow network and a different mesh on one host are reported."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.lab import faults
from tests.lab.hosts import Host, Lab
from tests.waiting import JOIN_LATE

pytestmark = pytest.mark.lab

_MOST_S = 200.0


@pytest.fixture
def slow(two_hosts: Lab) -> Iterator[Lab]:
    with faults.plant(two_hosts, "rate:node1:100"):
        yield two_hosts


def run(lab: Lab, mesh_of: Callable[[Host], str]) -> tuple[set[int], dict[str, Any]]:
    """Exit codes and the head's report of a run of two ranks on each host."""

    def argv(host: Host) -> tuple[str, ...]:
        where = ("--nnodes", "2", "--node-rank", str(host.index), "--rdzv-endpoint", "10.77.0.1:29400")
        what = ("--nproc-per-node", "2", "--only", "process_group,mesh", "--mesh", mesh_of(host))
        return ("python", "-m", "ddp_doctor", "run", *where, *JOIN_LATE, *what, "--json", str(host.folder / "out.json"))

    exits = {process.wait(_MOST_S) for process in lab.start_everywhere(argv).values()}
    assert lab.left_behind() == []
    return exits, json.loads((lab.hosts[0].folder / "out.json").read_text())


def codes(report: Mapping[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def test_inner_axis_that_crosses_the_slow_network_is_reported(slow: Lab):
    exits, report = run(slow, lambda _host: "shard=2,dp=2")

    assert (exits, codes(report)) == ({1}, ["DD645"])
    [finding] = report["findings"]
    assert finding["title"] == "The shard axis crosses nodes, but the dp axis does not"
    assert (finding["confidence"], finding["culprits"]) == ("likely", [])


def test_inner_axis_within_a_node_has_no_finding(slow: Lab):
    exits, report = run(slow, lambda _host: "dp=2,shard=2")

    assert (exits, codes(report)) == ({0}, [])


def test_two_hosts_with_different_meshes_blame_neither_and_do_not_hang(two_hosts: Lab):
    exits, report = run(two_hosts, lambda host: "dp=2,shard=2" if host.index else "shard=2,dp=2")

    assert (exits, codes(report)) == ({1}, ["DD643"])
    assert report["findings"][0]["culprits"] == []  # two ranks against two


def test_a_mesh_that_does_not_multiply_to_the_ranks_of_both_hosts_is_a_usage_error(two_hosts: Lab):
    exits, report = run(two_hosts, lambda _host: "dp=2,shard=4")

    assert (exits, codes(report)) == ({2}, [])
    assert "its sizes multiply to 8, and the world has 4 ranks" in report["summary"]
