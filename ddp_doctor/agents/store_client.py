"""The agent's line to the control store, which may fall silent without taking the agent with it.

Nothing here blocks longer than it is told to. What the store's process (store_client_process) reports is
kept by a thread; a second thread lets the agent's heart beat, so that an agent that is stopped, and not
only one whose host is gone, is seen to be silent by the others.
"""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic_core import from_json

from ddp_doctor.agents import store_client_process
from ddp_doctor.agents.messages import BeatSaid, Opening
from ddp_doctor.knowledge.deadlines import AGENT_PAUSE_S, BEAT_S, SILENT_S, turn_s
from ddp_doctor.model.base import Json
from ddp_doctor.ranks.forkserver import ForkServer

HEAD = 0
#: Stands for a value that is in the store and that nobody of ours wrote; no JSON is equal to it.
UNREADABLE: Final = object()
#: For the client's process to take what it is told, as a struct timeval (socket(7), SO_SNDTIMEO).
_PATIENCE = struct.pack("@ll", int(SILENT_S), 0)


_NO_HEAD = "a store without a head of ddp-doctor"
_PROCESS_ENDED = "the courier's process ended"


class StoreLost(Exception):
    """The control store broke off, or does not answer."""


@dataclass
class Beat:
    """What another agent said last, and when its count last grew (monotonic, of this node)."""

    count: int = -1
    grew_at: float = 0.0
    fields: dict[str, Json] = field(default_factory=dict)
    ahead_s: float | None = None  # how far this clock is ahead of that one, delivery included: the least


class StoreClient:
    """One agent's messages, values and beats. ``my_id`` is HEAD, or -1 until ``join`` was answered."""

    def __init__(
        self, server: ForkServer, run_folder: Path, host: str, port: int, my_id: int, nnodes: int
    ) -> None:
        self.my_id = my_id
        self.beats: dict[int, Beat] = {}
        self.error: str | None = None
        self.stopped_s = 0.0  # the longest that this agent was itself stopped, or starved
        self._changed = threading.Condition()
        self._values: dict[str, Json] = {}
        self._connected = False
        self._turned_at = time.monotonic()
        self._forgiven_until = 0.0
        self._fields: dict[str, Json] = {}
        self._closed = False
        self._urgent = threading.Event()
        self._sending = threading.Lock()
        self._turn_s = turn_s(nnodes)
        path = str(run_folder / f"client{os.urandom(3).hex()}.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(5.0)
            told = {"socket": path, "host": host, "port": port, "id": my_id, "turn_s": self._turn_s}
            self._process = server.fork(store_client_process.serve, json.dumps(told))
            try:
                self._line, _ = listener.accept()
            except TimeoutError as error:
                self._process.kill()
                raise StoreLost("the courier's process did not start") from error
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        threading.Thread(target=self._listen, daemon=True).start()

    # --- messages -------------------------------------------------------------------------------

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until the store has answered. Raises StoreLost."""
        if not self.wait(lambda: self._connected, timeout_s):
            raise StoreLost(self.error or "no answer")
        threading.Thread(target=self._beat, daemon=True).start()

    def join(self, node_report: Json, timeout_s: float) -> None:
        """Report in at the roll call; sets ``my_id``. Raises StoreLost."""
        self._send({"join": node_report})
        if not self.wait(lambda: self.my_id >= 0, timeout_s):
            raise StoreLost(self.error or "no answer")

    def put(self, key: str, value: Json) -> None:
        """Set a key, soon."""
        self._send({"set": key, "value": value})

    def put_first(self, key: str, value: Json) -> None:
        """Set a key unless another node has: whoever is first is heard by all."""
        self._send({"first": key, "value": value})

    def watch(self, key: str) -> None:
        """Ask for a key's value as soon as there is one."""
        self._send({"watch": key})

    def value(self, key: str) -> Json:
        """The value of a watched key, None until it came; UNREADABLE where it is nothing of ours."""
        return self._values.get(key)

    def await_value(self, key: str, timeout_s: float, otherwise: str) -> None:
        """Watch a key and wait for its value. Raises StoreLost with the store's error, or ``otherwise``."""
        self.watch(key)
        if not self.wait(lambda: self.value(key) is not None, timeout_s):
            raise StoreLost(self.error or otherwise)

    def await_opening(self, timeout_s: float) -> Opening:
        """Wait until the store's head has said who it is. Raises StoreLost where that is none of ours."""
        self.await_value("head", timeout_s, _NO_HEAD)
        return self.opening()

    def opening(self) -> Opening:
        """What the head said first. Raises StoreLost."""
        try:
            return Opening.model_validate(self.value("head"))
        except ValidationError as error:
            raise StoreLost(_NO_HEAD) from error

    def follow(self, ids: list[int]) -> None:
        """Whose beats to keep."""
        now = time.monotonic()
        for one in ids:
            self.beats.setdefault(one, Beat(grew_at=now))
        self._send({"follow": ids})

    def say(self, *, urgent: bool = False, **fields: Json) -> None:
        """Change what goes out with every beat, or at once."""
        self._fields = {**self._fields, **fields}
        if urgent:
            self._urgent.set()

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``ready()``, which is asked again after all news; False past the time or without store."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0 or self.error is not None:
                    return False
                self._changed.wait(min(left, 0.2))  # short: a signal is handled between two waits
        return True

    def clock_offset_s(self, one: int) -> float | None:
        """This node's clock less another agent's; too much by the time that a beat travels, at most 0.2 s."""
        beat = self.beats.get(one)
        return None if beat is None else beat.ahead_s

    # --- silence --------------------------------------------------------------------------------

    def silent_s(self, one: int) -> float:
        """How long another agent has not been heard of; 0 while this one was itself stopped or is waking."""
        now = time.monotonic()
        if now < self._forgiven_until or one not in self.beats:
            return 0.0
        return now - self.beats[one].grew_at

    def store_silent_s(self) -> float:
        """How long the store itself has not answered; infinite where it broke off."""
        if self.error is not None:
            return float("inf")
        now = time.monotonic()
        return 0.0 if now < self._forgiven_until else now - self._turned_at

    @property
    def has_died(self) -> bool:
        """Whether its own process was ended, from outside or for lack of memory: no node's fault."""
        return self.error == _PROCESS_ENDED

    # --- the threads and the end ----------------------------------------------------------------

    def close(self) -> None:
        """Hang up and end the process."""
        self._closed = True
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.join(0.5)

    def flush(self) -> None:
        """Let what was put go out before hanging up; bounded, and silent about failure."""
        turned = self._turned_at
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and self.error is None and self._turned_at - turned < 2 * BEAT_S:
            time.sleep(0.02)

    def _send(self, message: Json) -> None:
        line = json.dumps(message, ensure_ascii=False).encode(errors="replace") + b"\n"
        with self._sending:
            if self.error is not None:
                return
            try:
                self._line.sendall(line)
            except BlockingIOError:  # it stands in a call to a frozen store, and this line is torn
                self.error = "the control store takes nothing more"
            except OSError:  # its end is seen by the listening thread
                pass

    def _listen(self) -> None:
        with suppress(OSError, ValueError), self._line, self._line.makefile("rb") as lines:
            for line in lines:
                said = from_json(line)
                with self._changed:
                    self._take(said)
                    self._changed.notify_all()
        with self._changed:
            self.error = self.error or _PROCESS_ENDED
            self._changed.notify_all()

    def _take(self, said: dict[str, Json]) -> None:
        now = time.monotonic()
        if "turn" in said:
            self._turned_at = now
        elif "beats" in said:
            for one, fields in said["beats"].items():
                self._hear(int(one), fields, now)
        elif "key" in said:
            self._values[said["key"]] = said.get("value", UNREADABLE)
        elif "joined" in said:
            self.my_id = said["joined"]
        elif "connected" in said:
            self._connected = True
        elif "error" in said:
            self.error = said["error"]

    def _hear(self, one: int, fields: Json, now: float) -> None:
        """Take a beat; what is none was set by a stranger, for the store has no authentication."""
        beat = self.beats.setdefault(one, Beat())
        with suppress(ValidationError):
            said = BeatSaid.model_validate(fields)
            if said.n != beat.count:
                ahead = time.time() - said.at
                least = ahead if beat.ahead_s is None else min(beat.ahead_s, ahead)
                self.beats[one] = Beat(said.n, now, said.model_dump(exclude_unset=True), least)

    def _beat(self) -> None:
        count, last = 0, time.monotonic()
        pause_s = max(BEAT_S, self._turn_s)
        while not self._closed and self.error is None:
            now = time.monotonic()
            if now - last > AGENT_PAUSE_S + pause_s:  # this agent was stopped, and heard nothing meanwhile
                self._forgiven_until = now + SILENT_S
                self.stopped_s = max(self.stopped_s, now - last)
            count, last = count + 1, now
            self._send({"beat": count, "fields": self._fields})
            self._urgent.wait(pause_s)
            self._urgent.clear()
