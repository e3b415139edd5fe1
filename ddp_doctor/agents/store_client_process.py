"""The store client's process, which carries messages between its agent and the control store.

It is a process because the store's calls block in C++ past every timeout while the server is frozen, without an error.
This does not block the agent, which notices that the process no longer reports its rounds.

The agent sends one JSON object per line over a local socket::

    {"set": "order/1", "value": {…}}   {"first": "stop/t0", "value": "stuck"}   {"watch": "order/2"}
    {"last": "stop/t1", "value": "finished", "of": 2}
    {"follow": [1, 2, 3]}   {"beat": 17, "fields": {…}}   {"join": {…}}

It receives ``connected``, ``joined``, ``value``, ``unreadable``, ``beats`` and ``turn`` lines. A value that no agent of
ddp-doctor wrote is ``unreadable``, or null if a beat was expected: another beat follows.
"""

import json
import os
import signal
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

from pydantic_core import to_json

from ddp_doctor.agents.framing import Unreadable, is_part, mark, number_of_parts, packed, plain, unpacked
from ddp_doctor.knowledge.deadlines import BEAT_S, MUTE_S
from ddp_doctor.model.base import Json
from ddp_doctor.ranks import control_store, store
from ddp_doctor.ranks.process import FORKSERVER_PID, die_with_parent, set_name

#: The agent gets a ``turn`` this often, or per round: enough to notice silence, at almost no cost.
_REPORT_S = BEAT_S


def serve(argument: str) -> NoReturn:
    """Carry messages until the agent hangs up or the store is lost."""
    die_with_parent(FORKSERVER_PID)
    set_name("ddp-doctor:post")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = json.loads(argument)
    agent = socket.socket(socket.AF_UNIX)
    agent.connect(given["socket"])
    carrier = _Carrier(agent, int(given["id"]), float(given["turn_s"]))
    try:
        carrier.connect(given["host"], given["port"])
        while carrier.turn():
            pass
    except Exception as error:  # noqa: BLE001 - whatever torch raises is reported to the agent
        carrier.send({"error": f"{type(error).__name__}: {error}"[:2000]})
    os._exit(0)


class _Carrier:
    def __init__(self, agent: socket.socket, my_id: int, turn_s: float) -> None:
        self._agent = agent
        self._id = my_id
        self._turn_s = turn_s
        self._store: Any = None
        self._received = b""
        self._watched: list[str] = []
        self._followed: list[int] = []
        self._beats: dict[int, bytes] = {}  # of the agents whose first beat was set: a key stays set
        self._turns = 0

    def send(self, message: Json) -> None:
        """Send the agent a message; without an agent this process exits."""
        self._agent.settimeout(None)  # an agent that is stopped reads it when it continues
        try:
            self._agent.sendall(to_json(message, inf_nan_mode="null") + b"\n")
        except OSError:
            os._exit(0)

    def connect(self, host: str, port: int) -> None:
        self._store = store.connect(host, port, control_store.PREFIX, timedelta(seconds=MUTE_S))
        self._store.set(f"hello/{self._id}/{os.getpid()}", b"1")
        self.send({"connected": True})

    def turn(self) -> bool:
        """Run one round: read the agent's messages and the store, and report the round; return False at the end."""
        self._agent.settimeout(self._turn_s)
        try:
            data = self._agent.recv(1 << 20)
        except TimeoutError:
            data = None
        if data == b"":
            return False
        self._received += data or b""
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._carry(json.loads(line))
        self._read_store()
        self._turns += 1
        if self._turns % max(round(_REPORT_S / self._turn_s), 1) == 0:
            self.send({"turn": self._turns})
        if data is not None:
            time.sleep(self._turn_s / 4)  # many messages of the agent must not keep the store's server busy
        return True

    def _carry(self, message: dict[str, Json]) -> None:
        if "set" in message:
            self._put(message["set"], message["value"])
        elif "first" in message:
            self._store.compare_set(message["first"], "", json.dumps(message["value"]))
        elif "last" in message:
            if self._store.add(f"{message['last']}/asked", 1) == message["of"]:
                self._store.compare_set(message["last"], "", json.dumps(message["value"]))
        elif "watch" in message:
            self._watched.append(message["watch"])
        elif "follow" in message:
            self._followed = message["follow"]
        elif "beat" in message:
            fields = {"n": message["beat"], "at": time.time(), **message["fields"]}
            self._store.set(f"beat/{self._id}", json.dumps(fields))
        elif "join" in message:
            self._id = self._store.add("arrivals", 1)
            self._put(f"join/{self._id}", message["join"])
            self.send({"joined": self._id})

    def _read_store(self) -> None:
        for key in list(self._watched):
            if self._store.check([key]):
                self._watched.remove(key)
                try:
                    self.send({"key": key, "value": self._value(key)})
                except Unreadable as error:
                    self.send({"key": key, "unreadable": str(error)})
        late = [agent for agent in self._followed if agent not in self._beats]
        self._beats.update({agent: b"" for agent in late if self._store.check([f"beat/{agent}"])})
        there = [agent for agent in self._followed if agent in self._beats]
        if there:
            values = map(bytes, self._store.multi_get([f"beat/{agent}" for agent in there]))
            new = {agent: text for agent, text in zip(there, values, strict=True) if text != self._beats[agent]}
            self._beats.update(new)
            beats: dict[int, Json] = dict.fromkeys(new)
            for agent, text in new.items():
                with suppress(Unreadable):
                    beats[agent] = plain(text)
            if beats:
                self.send({"beats": beats})

    def _put(self, key: str, value: Json) -> None:
        parts = packed(value)
        if len(parts) == 1:
            self._store.set(key, parts[0])
            return
        for number, part in enumerate(parts):
            self._store.set(f"{key}/{number}", part)
        self._store.set(key, mark(len(parts)))

    def _value(self, key: str) -> Json:
        """Return the value of a key that is set, joined from its parts if it has several. Raises Unreadable."""
        text = bytes(self._store.get(key))
        if is_part(text):
            return unpacked([text])
        content = plain(text)
        count = number_of_parts(content)
        if count is None:
            return content
        keys = [f"{key}/{number}" for number in range(count)]
        if not self._store.check(keys):
            raise Unreadable(f"another node sent a message in {count} pieces, but some are missing")
        return unpacked([bytes(self._store.get(part)) for part in keys])
