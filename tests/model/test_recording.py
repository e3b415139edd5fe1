"""The answers of a recording and its world, and of copies with other fields."""

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import Node, Recording, World
from tests.readings import collected, uneven_world


class Color(Fact):
    KIND: ClassVar[str] = "color/1"
    name: str


def _reading(name: str, node: int = 0, check: str = "paint") -> Reading:
    return collected(check, Color(name=name), node)


def test_facts_come_in_the_order_they_were_read_and_are_the_callers_own_list():
    recording = Recording(readings=(_reading("red"), _reading("blue", node=1)))

    recording.facts(Color).clear()

    assert [(seen.fact.name, seen.node) for seen in recording.facts(Color)] == [("red", 0), ("blue", 1)]
    assert recording.first(Color) == Color(name="red")


def test_a_fact_is_validated_once_however_many_rules_ask_for_it():
    recording = Recording(readings=(_reading("red"),))

    assert recording.facts(Color)[0].fact is recording.facts(Color)[0].fact


def test_copy_with_other_readings_does_not_reuse_cached_facts():
    red = Recording(readings=(_reading("red"),))
    assert red.first(Color) == Color(name="red")

    blue = red.model_copy(update={"readings": (_reading("blue", check="brush"),)})

    assert (blue.first(Color), red.first(Color)) == (Color(name="blue"), Color(name="red"))
    assert [len(one.of_check("paint")) for one in (red, blue)] == [1, 0]


def test_cached_values_affect_neither_equality_nor_the_json():
    one, other = (Recording(world=World(nodes=(Node(),)), readings=(_reading("red"),)) for _ in range(2))

    one.facts(Color)
    assert one.world is not None
    one.world.hostname(0)

    assert one == other
    assert one.model_dump_json() == other.model_dump_json()


def test_values_computed_by_a_copy_stay_separate():
    whole = Recording(run_id="whole", readings=(_reading("red"),))
    part = whole.model_copy(update={"readings": ()})

    names = whole.once("names", lambda: (part.once("names", lambda: "of the part"), "of the whole"))

    assert names == ("of the part", "of the whole")
    assert part.once("names", lambda: "of the part") == "of the part"


@pytest.mark.parametrize("kind", [None, ["color/1"], 7])
def test_fact_without_a_valid_kind_is_kept_but_not_read(kind):
    strange = Reading(check="paint", status=Status.COLLECTED, fact={"kind": kind, "name": "red"})
    recording = Recording(readings=(strange, _reading("blue")))

    assert [seen.fact.name for seen in recording.facts(Color)] == ["blue"]
    assert recording.of_check("paint")[0] is strange


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_ranks_are_dense_by_node_rank_then_local_rank(counts):
    world = uneven_world(counts)

    ranks = [rank for node in range(world.nnodes) for rank in world.ranks_of(node)]

    assert ranks == list(range(world.world_size))
    for node, count in enumerate(counts):
        assert [world.node_of(rank) for rank in world.ranks_of(node)] == [node] * count
        assert [world.local_rank(rank) for rank in world.ranks_of(node)] == list(range(count))


def test_a_node_that_never_reported_has_the_usual_number_of_ranks_and_its_expected_name():
    world = World(
        nnodes=3, nproc_per_node=4, world_size=9, nodes=(Node(node_rank=2, hostname="c", nproc=1),),
        expected_hosts=("a", "b"),
    )  # fmt: skip

    assert [world.ranks_of(node) for node in range(3)] == [range(4), range(4, 8), range(8, 9)]
    assert [world.hostname(node) for node in range(4)] == ["a", "b", "c", "node rank 3"]
    assert world.node_of(9) == 2  # outside the world: by the usual number


def test_world_copied_with_other_nodes_does_not_reuse_the_old_ones():
    world = uneven_world([2, 2])
    assert (world.hostname(1), world.ranks_of(1)) == ("node1", range(2, 4))

    other = world.model_copy(update={"nodes": (Node(node_rank=0, nproc=1), Node(node_rank=1, hostname="m"))})

    assert (other.hostname(1), other.ranks_of(1)) == ("m", range(1, 3))


def test_a_world_of_an_absurd_size_is_answered_at_once():
    world = World(nnodes=10**15, nproc_per_node=8, world_size=8 * 10**15)

    assert world.node_of(8 * 10**14 + 3) == 10**14
