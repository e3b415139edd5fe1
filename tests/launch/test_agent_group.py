"""The agent group and the store client if a process that they need dies or stops; no store, no ranks."""

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.agents import store_client
from ddp_doctor.agents.agent_group import AgentGroup
from ddp_doctor.agents.messages import BeatMessage
from ddp_doctor.agents.remote_ranks import GroupRanks, StoreRemoteRanks
from ddp_doctor.agents.store_client import HEAD, Beat, StoreClient, StoreLost
from ddp_doctor.knowledge.deadlines import HAND_IN_S, SILENT_S
from tests.waiting import LIMIT_S


class _Process:
    pid = os.getpid()

    def __init__(self) -> None:
        self.line: socket.socket | None = None

    def fork(self, _target: Callable[[str], None], argument: str) -> "_Process":
        path = json.loads(argument)["socket"]

        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(path)
        return self

    def kill(self) -> None:
        assert self.line is not None
        self.line.close()

    def join(self, _timeout_s: float) -> None:
        pass


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Callable[[int], tuple[StoreClient, _Process]]]:
    """``call(my_id)``: a client, and the process that it has to do with."""
    made: list[StoreClient] = []

    def one(my_id: int) -> tuple[StoreClient, _Process]:
        process = _Process()
        stand_in: Any = process
        made.append(StoreClient(stand_in, tmp_path, "127.0.0.1", 1, my_id, 2))
        return made[-1], process

    yield one
    for client in made:
        client.close()
        client.wait(lambda: False, LIMIT_S)  # until its thread has closed its end


def _break_off(client: StoreClient, process: _Process) -> None:
    process.kill()
    assert not client.wait(lambda: False, LIMIT_S)
    assert client.error is not None


def test_head_with_a_dead_store_client_does_not_wait_forever(call):
    client, process = call(HEAD)
    others = StoreRemoteRanks(AgentGroup(client, {0: HEAD, 1: 1}), "t0")
    others.done()
    assert others.ended() is None

    _break_off(client, process)

    with pytest.raises(StoreLost):
        others.ended()


def test_follower_with_a_dead_store_client_does_not_report_a_lost_head(call):
    client, process = call(3)
    group = AgentGroup(client, {0: HEAD, 1: 3}, my_rank=1)

    _break_off(client, process)

    with pytest.raises(StoreLost):
        group.check()


def test_head_with_a_stopped_store_does_not_report_lost_nodes(call, monkeypatch: Any):
    client, _ = call(HEAD)
    group = AgentGroup(client, {0: HEAD, 1: 1})
    monkeypatch.setattr(client, "silent_s", lambda _agent: SILENT_S + 0.5)  # the last beat came before
    monkeypatch.setattr(client, "store_silent_s", lambda: SILENT_S - 0.5)  # the store's last answer

    group.check()

    monkeypatch.setattr(client, "store_silent_s", lambda: SILENT_S + 0.1)
    with pytest.raises(StoreLost):
        group.check()


def test_undeliverable_message_of_a_store_client_does_not_stop_its_agent(call, monkeypatch: Any):
    monkeypatch.setattr(store_client, "_PATIENCE", struct.pack("@ll", 0, 200_000))
    client, _ = call(3)

    client.put("result/t0/3", "x" * 8_000_000)
    client.put("bye/3", value=True)  # no process ever reads it

    assert client.error == "ddp-doctor's TCPStore on the head node accepts no more data"


def test_responding_nodes_that_never_finish_end_the_trial_eventually(call):
    client, _ = call(HEAD)
    group = AgentGroup(client, {0: HEAD, 1: 1, 2: 2}, until=time.monotonic() + 100.0)
    client.beats = {1: _heard(done="t0"), 2: _heard(done="")}
    said: list[tuple[str, Any]] = []
    client.put_first = lambda key, value: said.append((key, value))
    others = StoreRemoteRanks(group, "t0")
    others.done()
    assert others.ended() is None
    assert said == []

    group.until = time.monotonic() - 1.0
    others.ended()

    assert said == [("stop/t0", "stuck")]
    assert others.lost == (2,)


def test_activity_on_another_node_is_not_an_event_but_delays_the_evaluation(call):
    client, _ = call(HEAD)
    others = StoreRemoteRanks(AgentGroup(client, {0: HEAD, 1: 1}), "t0")
    others.note(events=4, activity=0)
    known = others.active_at

    client.beats = {1: _heard(activity=1)}
    others.note(events=4, activity=0)

    assert known < others.active_at
    assert not others.moved_since(known)


@pytest.mark.parametrize(("my_id", "said"), [(HEAD, [("stop/t0", "interrupted")]), (3, [])])
def test_only_a_head_that_leaves_ends_a_trial_for_all(call, my_id, said):
    client, _ = call(my_id)
    heard: list[tuple[str, Any]] = []
    client.put_first = lambda key, value: heard.append((key, value))

    StoreRemoteRanks(AgentGroup(client, {0: HEAD, 1: 3}, my_rank=min(my_id, 1)), "t0").abandon()

    assert heard == said


def test_lost_node_ends_only_the_trial_of_its_group(call, monkeypatch: Any):
    client, _ = call(HEAD)
    group = AgentGroup(client, {0: HEAD, 1: 1, 2: 2})
    said: list[tuple[str, Any]] = []
    client.put_first = lambda key, value: said.append((key, value))
    monkeypatch.setattr(group, "silent", lambda: [2])
    others, its_own = GroupRanks(group, "t1", (0, 1), 6.0), GroupRanks(group, "t2", (0, 2), 6.0)

    assert others.ended() is None
    assert its_own.ended() == "stuck"
    assert (said, its_own.lost) == ([("stop/t2", "stuck")], (2,))


def test_follower_ends_the_trial_of_its_group_if_the_head_is_silent(call, monkeypatch: Any):
    client, _ = call(3)
    group = AgentGroup(client, {0: HEAD, 1: 3, 2: 4}, my_rank=1)
    client.put_first = lambda *_: None
    monkeypatch.setattr(group, "silent", lambda: [0])

    ranks = GroupRanks(group, "t1", (1, 2), 6.0)

    assert (ranks.ended(), ranks.lost) == ("stuck", (0,))


def test_last_node_of_a_group_to_finish_ends_its_trial(call):
    client, _ = call(3)
    said: list[tuple[str, Any, int]] = []
    client.put_last = lambda key, value, of: said.append((key, value, of))
    ranks = GroupRanks(AgentGroup(client, {0: HEAD, 1: 3}, my_rank=1), "t1", (1, 2, 5), 6.0)

    ranks.done()
    ranks.done()

    assert said == [("stop/t1", "finished", 3)]


def test_finished_node_does_not_wait_for_its_group_forever(call, monkeypatch: Any):
    client, _ = call(3)
    said: list[tuple[str, Any]] = []
    client.put_first = lambda key, value: said.append((key, value))
    client.put_last = lambda *_: None
    ranks = GroupRanks(AgentGroup(client, {0: HEAD, 1: 3}, my_rank=1), "t1", (1, 2), 0.0)
    assert ranks._until == float("inf")

    ranks.done()
    assert ranks.ended() is None
    monkeypatch.setattr(ranks, "_until", ranks._until - HAND_IN_S)

    assert ranks.ended() == "stuck"
    assert said == [("stop/t1", "stuck")]


@pytest.mark.parametrize("said", [None, [], {}, {"n": 1}, {"n": "1", "at": None}])
def test_invalid_beat_is_ignored(call, said):
    client, _ = call(HEAD)

    client._take({"beats": {"1": said}})

    assert client.beats[1].message.n == 0


def _heard(**fields: Any) -> Beat:
    return Beat(BeatMessage(n=1, at=0.0, **fields), time.monotonic())
