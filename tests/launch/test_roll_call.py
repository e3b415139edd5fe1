"""Whom the head takes in at the roll call, without a store."""

import time
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.launch.cards import Card, ranked
from ddp_doctor.launch.courier import HEAD, Beat
from ddp_doctor.launch.place import Place
from ddp_doctor.launch.roll_call import RollCall


class _Courier:
    """All that it is asked for has come already."""

    my_id, error = HEAD, None

    def __init__(self, *cards: Any) -> None:
        self.values = {f"join/{number}": card for number, card in enumerate(cards, 1)}
        self.beats: dict[int, Beat] = {}
        self.silent: set[int] = set()

    def watch(self, _key: str) -> None:
        pass

    def follow(self, _ids: list[int]) -> None:
        pass

    def value(self, key: str) -> Any:
        return self.values.get(key)

    def wait(self, _ready: object, _timeout_s: float) -> bool:
        return True

    def silent_s(self, one: int) -> float:
        return 100.0 if one in self.silent else 0.0


def _card(hostname: str, nnodes: int = 2) -> dict[str, Any]:
    return Card(hostname=hostname, nnodes=nnodes).model_dump(mode="json")


def _head(courier: _Courier, nnodes: int = 2) -> RollCall:
    place = Place(nnodes, 0, None, ("node0", 1), (), "plain", is_started_by_us=False)
    nobody: Any = None  # no forkserver: the courier is a stand-in that asks nobody
    stand_in: Any = courier
    call = RollCall(nobody, Path(), place, "run", time.monotonic() + 60.0, lambda _text: None)
    call.courier = stand_in
    call.cards = {HEAD: Card(hostname="node0", nnodes=nnodes, claimed_rank=0)}
    return call


def test_of_more_nodes_than_were_asked_for_the_first_to_come_take_part():
    call = _head(_Courier(_card("node1"), _card("node2"), _card("node3")))

    call._admit()

    assert call._outcome() == "met"
    assert {rank: call.cards[one].hostname for rank, one in ranked(call.cards).items()} == {
        0: "node0",
        1: "node1",
    }


def test_one_that_is_gone_again_makes_room_for_the_next():
    courier = _Courier(_card("node1"), _card("node2"), _card("node3"))
    call = _head(courier, nnodes=3)
    call._admit()
    courier.silent = {1}

    call._admit()
    call._admit()

    assert [card.hostname for card in call.cards.values()] == ["node0", "node2", "node3"]


def test_what_is_no_card_is_passed_over():
    call = _head(_Courier([1], {"hostname": 3}, _card("node1")))

    call._admit()

    assert call._outcome() == "met"


def test_nodes_that_expect_more_nodes_are_all_taken_in_to_be_counted():
    call = _head(_Courier(_card("node1", 3), _card("node2", 3)))

    call._admit()

    assert len(call.cards) == 3
    assert call._outcome() == "disagree"


@pytest.mark.parametrize(
    ("waited_s", "others", "outcome"),
    [(4.0, (4, 3), "disagree"), (4.0, (3,), None), (7.0, (3,), "disagree")],
    ids=["one is alone in it", "nobody knows yet who is", "nobody else came"],
)
def test_who_is_alone_with_a_number_of_nodes_is_waited_for(waited_s, others, outcome):
    call = _head(_Courier(*(_card(f"node{n}", told) for n, told in enumerate(others, 1))), nnodes=4)
    call._admit()
    call._agreed_at -= waited_s

    assert call._outcome() == outcome
