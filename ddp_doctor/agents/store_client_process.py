"""The client's own process: carries messages between its agent and the control store.

A process, because the store's calls block in C++ past every time-out while the server is frozen, and
say nothing of it; here that costs the agent nothing, and it sees that the client's turns stop.

The agent speaks over a local socket, one JSON object a line::

    {"set": "order/1", "value": {…}}   {"first": "stop/t0", "value": "stuck"}   {"watch": "order/2"}
    {"follow": [1, 2, 3]}   {"beat": 17, "fields": {…}}   {"join": {…}}

and hears ``connected``, ``joined``, ``value``, ``unreadable``, ``beats`` and ``turn`` lines. What is no value of
ours is told as that, or, where it should be a beat, as null: another beat follows.
"""

import json
import os
import signal
import socket
import time
from datetime import timedelta
from typing import Any, NoReturn

from pydantic_core import to_json

from ddp_doctor.agents.framing import Unreadable, is_part, mark, number_of_parts, packed, plain, unpacked
from ddp_doctor.knowledge.deadlines import BEAT_S, MUTE_S
from ddp_doctor.model.base import Json
from ddp_doctor.ranks import control_store, store
from ddp_doctor.ranks.process import FORKSERVER_PID, die_with_parent, set_name

#: The agent is told of the rounds this often, or of each: enough to see silence, and it costs nothing.
_TOLD_S = BEAT_S


def serve(argument: str) -> NoReturn:
    """Carry messages until the agent hangs up or the store is lost."""
    die_with_parent(FORKSERVER_PID)
    set_name("ddp-doctor:post")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = json.loads(argument)
    agent = socket.socket(socket.AF_UNIX)
    agent.connect(given["socket"])
    client = _StoreClient(agent, int(given["id"]), float(given["turn_s"]))
    try:
        client.connect(given["host"], given["port"])
        while client.turn():
            pass
    except Exception as error:  # noqa: BLE001 - whatever torch raises is what the agent is told
        client.say({"error": f"{type(error).__name__}: {error}"[:2000]})
    os._exit(0)


class _StoreClient:
    def __init__(self, agent: socket.socket, my_id: int, turn_s: float) -> None:
        self._agent = agent
        self._id = my_id
        self._turn_s = turn_s
        self._store: Any = None
        self._heard = b""
        self._watched: list[str] = []
        self._followed: list[int] = []
        self._beats: dict[int, bytes] = {}  # of those, whose first beat is there: a key that is there stays
        self._turns = 0

    def say(self, message: Json) -> None:
        """Tell the agent; one that has gone needs no more telling."""
        self._agent.settimeout(None)  # one that is stopped takes it when it goes on
        try:
            self._agent.sendall(to_json(message, inf_nan_mode="null") + b"\n")
        except OSError:
            os._exit(0)

    def connect(self, host: str, port: int) -> None:
        self._store = store.connect(host, port, control_store.PREFIX, timedelta(seconds=MUTE_S))
        self._store.set(f"hello/{self._id}/{os.getpid()}", b"1")
        self.say({"connected": True})

    def turn(self) -> bool:
        """One round: what the agent says, what the store has, and that it went round; False at the end."""
        self._agent.settimeout(self._turn_s)
        try:
            data = self._agent.recv(1 << 20)
        except TimeoutError:
            data = None
        if data == b"":
            return False
        self._heard += data or b""
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._carry(json.loads(line))
        self._look()
        self._turns += 1
        if self._turns % max(round(_TOLD_S / self._turn_s), 1) == 0:
            self.say({"turn": self._turns})
        if data is not None:
            time.sleep(self._turn_s / 4)  # an agent that talks much must not keep the store's server busy
        return True

    def _carry(self, told: dict[str, Json]) -> None:
        if "set" in told:
            self._put(told["set"], told["value"])
        elif "first" in told:
            self._store.compare_set(told["first"], "", json.dumps(told["value"]))
        elif "watch" in told:
            self._watched.append(told["watch"])
        elif "follow" in told:
            self._followed = told["follow"]
        elif "beat" in told:
            fields = {"n": told["beat"], "at": time.time(), **told["fields"]}
            self._store.set(f"beat/{self._id}", json.dumps(fields))
        elif "join" in told:
            self._id = self._store.add("arrivals", 1)
            self._put(f"join/{self._id}", told["join"])
            self.say({"joined": self._id})

    def _look(self) -> None:
        for key in list(self._watched):
            if self._store.check([key]):
                self._watched.remove(key)
                self.say({"key": key, **self._get(key)})
        late = [one for one in self._followed if one not in self._beats]
        self._beats.update({one: b"" for one in late if self._store.check([f"beat/{one}"])})
        there = [one for one in self._followed if one in self._beats]
        if there:
            values = map(bytes, self._store.multi_get([f"beat/{one}" for one in there]))
            new = {one: text for one, text in zip(there, values, strict=True) if text != self._beats[one]}
            self._beats.update(new)
            if new:
                self.say({"beats": {one: _beat(text) for one, text in new.items()}})

    def _put(self, key: str, value: Json) -> None:
        parts = packed(value)
        if len(parts) == 1:
            self._store.set(key, parts[0])
            return
        for number, part in enumerate(parts):
            self._store.set(f"{key}/{number}", part)
        self._store.set(key, mark(len(parts)))

    def _get(self, key: str) -> dict[str, Json]:
        try:
            return {"value": self._value(key)}
        except Unreadable as error:
            return {"unreadable": str(error)}

    def _value(self, key: str) -> Json:
        """The value of a key that is there; its parts are, too, where one of ours wrote it. Raises Unreadable."""
        text = bytes(self._store.get(key))
        if is_part(text):
            return unpacked([text])
        said = plain(text)
        count = number_of_parts(said)
        if count is None:
            return said
        keys = [f"{key}/{number}" for number in range(count)]
        if not self._store.check(keys):
            raise Unreadable("a part of the value is not there")
        return unpacked([bytes(self._store.get(one)) for one in keys])


def _beat(text: bytes) -> Json:
    try:
        return plain(text)
    except Unreadable:
        return None
