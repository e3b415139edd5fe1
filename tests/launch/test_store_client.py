"""Foreign writes to the store that the agents meet on: a real store, real store clients, real clients."""

import json
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.agents.store_client import HEAD, UNREADABLE, StoreClient
from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.ranks import control_store
from ddp_doctor.ranks.control_store import Control
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.store import connect
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks

JUNK = {
    "no JSON": b"GET / HTTP/1.0\r\n\r\n",
    "no text": b"\xff\xfe\x00",
    "nothing": b"",
    "not a number": b"NaN",
    "nested": b"[" * 100_000,
    "an invalid number of parts": b'{"parts": "many"}',
    "too many parts": b'{"parts": 1000000000000}',
    "parts that are not there": b'{"parts": 3}',
    "lone surrogate": b'"\\ud800"',
    "cut short": b"x\x01",
}
BEATS = {
    **JUNK,
    "a list": b"[1, 2]",
    "no count": b'{"at": 1.0}',
    "no time": b'{"n": 1, "at": null}',
    "endless": b'{"n": 1, "at": 1e999}',
    "too large": b'{"n": 1, "at": ' + b"9" * 400 + b"}",
    "another event count": b'{"n": 1, "at": 1.0, "events": "all"}',
    "negative events": b'{"n": 1, "at": 1.0, "events": -5}',
    "suspects that are none": b'{"n": 1, "at": 1.0, "suspects": [[]]}',
    "a word that is none": b'{"n": 1, "at": 1.0, "leaving": {"a": 1}}',
}


@pytest.fixture
def server(session: Session) -> ForkServer:
    return session.server


@pytest.fixture
def store(server: ForkServer, tmp_path: Path) -> Iterator[Control]:
    one = control_store.start(server, tmp_path, "127.0.0.1", 0)
    yield one
    one.stop()


@pytest.fixture
def stranger(store: Control) -> Any:
    """Return a foreign client with the agents' keys."""
    return connect("127.0.0.1", store.port, control_store.PREFIX, timedelta(seconds=LIMIT_S))


@pytest.fixture
def client(server: ForkServer, store: Control, tmp_path: Path) -> Iterator[Callable[[int], StoreClient]]:
    """Yield ``client(my_id)``, which returns a connected client."""
    made: list[StoreClient] = []

    def one(my_id: int) -> StoreClient:
        made.append(StoreClient(server, tmp_path, "127.0.0.1", store.port, my_id, 2))
        made[-1].wait_connected(LIMIT_S)
        return made[-1]

    yield one
    for each in made:
        each.close()


def _wait_for_turn(client: StoreClient) -> None:
    """Wait until the client has ended a turn, which may have begun before this call."""
    turned_at = client._turned_at
    wait_until(lambda: client._turned_at > turned_at)


def _still_carries(client: StoreClient, stranger: Any) -> None:
    """Assert that it still works: a value written after the junk arrives."""
    stranger.set("after", b'"well"')
    client.await_value("after", LIMIT_S, "nothing more was heard")
    assert client.value("after") == "well"


def test_foreign_values_are_unreadable_and_end_nothing(client, stranger):
    mine = client(HEAD)
    for name, junk in JUNK.items():
        stranger.set(name, junk)
        mine.await_value(name, LIMIT_S, f"{name} was not heard at all")
        assert mine.value(name) is UNREADABLE, name

    _still_carries(mine, stranger)


def test_parts_that_unpack_to_no_value_are_unreadable(client, stranger):
    mine = client(HEAD)
    for key, part in (
        ("a", b"not packed"),
        ("b", zlib.compress(b"{")),
        ("c", zlib.compress(b" " * (1 << 29), level=1)),
    ):
        stranger.set(f"{key}/0", part)
        stranger.set(key, b'{"parts": 1}')
        mine.await_value(key, LIMIT_S, "it was not heard at all")
        assert mine.value(key) is UNREADABLE

    _still_carries(mine, stranger)


def test_invalid_beat_is_ignored_and_the_next_one_is_heard(client, stranger):
    mine = client(HEAD)
    mine.follow([1])
    heard = mine.beats[1].message
    for count, (name, junk) in enumerate(BEATS.items(), 1):
        stranger.set("beat/1", junk)
        _wait_for_turn(mine)
        _wait_for_turn(mine)
        assert mine.beats[1].message == heard, name

        stranger.set("beat/1", json.dumps({"n": count, "at": time.time(), "events": 3}).encode())
        assert mine.wait(lambda count=count: mine.beats[1].message.n == count, LIMIT_S), name
        heard = mine.beats[1].message
        assert heard.events == 3

    _still_carries(mine, stranger)


def test_texts_in_beats_of_an_agent_are_plain_and_short(client, stranger):
    mine = client(HEAD)
    mine.follow([1])
    words = "\x1b]52;c;b3Vycw==\x07\x1b[2J" + "x" * 100_000
    stranger.set("beat/1", json.dumps({"n": 1, "at": time.time(), "leaving": words, "roll": words}).encode())

    assert mine.wait(lambda: mine.beats[1].message.n == 1, LIMIT_S)

    for said in (mine.beats[1].message.leaving, mine.beats[1].message.roll):
        assert len(said) <= 500
        assert said.isprintable()


def test_invalid_numbers_are_sent_as_null(client):
    one, other = client(HEAD), client(1)
    one.put("between/1", {"ratio": float("nan"), "most": float("inf"), "name": "caf\udce9"})

    other.await_value("between/1", LIMIT_S, "it was not heard at all")

    assert other.value("between/1") == {"ratio": None, "most": None, "name": "caf?"}


def test_a_value_of_many_parts_arrives(client):
    one, other = client(HEAD), client(1)
    value = [f"{number:x}" for number in range(2_000_000)]
    one.put("order/1", value)

    other.await_value("order/1", LIMIT_S, "it was not heard at all")

    assert other.value("order/1") == value
