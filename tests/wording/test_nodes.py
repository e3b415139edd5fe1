from typing import ClassVar

from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.wording.nodes import by_cause, first_names, node_culprits, shortened
from tests.readings import collected


class Color(Fact):
    KIND: ClassVar[str] = "color/1"
    name: str


def seen(*colors: str) -> Recording:
    return Recording(
        world=World(nnodes=2, nodes=(Node(node_rank=0, hostname="alpha"), Node(node_rank=1, hostname="beta"))),
        readings=tuple(collected("c", Color(name=color), node) for node, color in enumerate(colors)),
    )


def test_facts_are_grouped_by_cause_and_facts_without_a_cause_are_omitted():
    facts = seen("red", "blue", "red").facts(Color)
    groups = by_cause(facts, lambda fact: fact.name if fact.name != "blue" else None)
    assert {cause: [node.node for node in group] for cause, group in groups.items()} == {"red": [0, 2]}


def test_a_node_is_a_culprit_once():
    recording = seen("a", "b")
    facts = recording.facts(Color)
    culprits = node_culprits(recording, [*facts, *facts])
    assert [(culprit.node, culprit.node_rank) for culprit in culprits] == [("alpha", 0), ("beta", 1)]


def test_first_names_are_listed_and_the_rest_is_counted():
    assert first_names(["a", "b"], 2) == "a, b"
    assert first_names(["a", "b", "c"], 2) == "a, b and 1 more"
    assert first_names([], 2) == ""
    assert shortened(["a", "b"], 2) == ["a", "b"]
    assert shortened(["a", "b", "c", "d"], 2) == ["a", "b", "and 2 more"]
