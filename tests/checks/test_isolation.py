"""The rules on tests of groups of nodes: what they say, and of whom."""

import pytest

from tests.recordings import judged


def title(situation: str) -> str:
    [finding] = judged(f"isolation/{situation}").report.findings
    return finding.title


@pytest.mark.parametrize(
    ("situation", "says"),
    [
        ("hangs-with-all", "node5 hangs with each of 3 other nodes, which pass without it; alone it passes"),
        ("fails-alone", "node5 fails alone, without any other node"),
        ("dies", "node2 fell silent while it was tested with node3"),
        ("pair", "node1 and node6 fail together, and both pass with others"),
        ("leaf", "Leaf leaf2 hangs with other leaves: its nodes pass among themselves"),
        ("larger-only", "12 nodes hang together, while no pair of them does: groups of up to 11 pass"),
        ("two-nodes", "node0 and node1 hang together; who is to blame is not settled"),
    ],
)
def test_the_title_says_who_does_what_and_with_whom(situation, says):
    assert title(situation) == says


def test_a_fault_that_comes_now_and_then_has_a_rate_with_its_interval():
    assert "now and then" in title("now-and-then")
    assert "%, 95 % interval" in title("now-and-then")


def test_where_no_topology_tells_the_leaf_its_nodes_are_named_as_those_that_fail_with_others_and_not_blamed():
    [finding] = judged("isolation/leaf-not-told").report.findings

    assert finding.title.startswith("node8, node9, node10 and node11 hang with 3 other nodes or more")
    assert finding.culprits == ()


def test_a_search_that_ended_before_all_was_settled_is_unsure():
    assert judged("isolation/budget-used-up").report.verdict.value == "unsure"
