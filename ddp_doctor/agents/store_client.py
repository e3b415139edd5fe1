"""The agent's client of the control store. If the store stops answering, the agent continues.

Calls in this module do not block longer than their timeout. A thread keeps the reports of the client's process
(store_client_process). A second thread sends the agent's beats, so the others also notice an agent that is stopped, not
only one whose host is lost.
"""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic_core import from_json

from ddp_doctor.agents import store_client_process
from ddp_doctor.agents.framing import RunIsOver
from ddp_doctor.agents.messages import BeatMessage, Opening
from ddp_doctor.knowledge.deadlines import AGENT_PAUSE_S, BEAT_S, SILENT_S, turn_s
from ddp_doctor.model.base import Json
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.helper import Helper
from ddp_doctor.ranks.patience import Patience

HEAD = 0
#: A value in the store that no agent of ddp-doctor wrote; it is not equal to any JSON value.
UNREADABLE: Final = object()
#: For the client's process to read a message, as a struct timeval (socket(7), SO_SNDTIMEO).
_PATIENCE = struct.pack("@ll", int(SILENT_S), 0)


#: From the fork of the client's process until it connects to this agent.
_START_S = 5.0
NO_ANSWER = "no answer"
NO_HEAD = "a TCPStore without a head node of ddp-doctor"
_PROCESS_ENDED = "the process of the TCPStore client ended"


class StoreLost(RunIsOver):
    """The control store broke off, or does not answer."""


#: A placeholder before the first beat, which is number 1.
_NONE_YET = BeatMessage(n=0, at=0.0)


@dataclass
class Beat:
    """The last beat of another agent, and when it came (monotonic, of this node)."""

    message: BeatMessage = _NONE_YET
    grew_at: float = 0.0
    ahead_s: float | None = None  # minimum lead of this clock over the other agent's, including delivery


def _accepted(listener: socket.socket) -> socket.socket | None:
    with suppress(TimeoutError):
        return listener.accept()[0]
    return None


class StoreClient:
    """The messages, values and beats of one agent. ``my_id`` is HEAD, or -1 until ``join`` was answered."""

    def __init__(self, server: ForkServer, run_folder: Path, host: str, port: int, my_id: int, nnodes: int) -> None:
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
            listener.settimeout(0.2)
            arguments = {"socket": path, "host": host, "port": port, "id": my_id, "turn_s": self._turn_s}
            self._process = server.fork(store_client_process.serve, json.dumps(arguments))
            self._helper = Helper("the TCPStore client", self._process.pid or 0)
            patience = Patience(_START_S, [self._process.pid])
            while not (line := _accepted(listener)):
                if patience.is_over():
                    self._process.kill()
                    raise StoreLost(
                        f"ddp-doctor's process for the connection to the head node did not start within {_START_S:g} s"
                    )
            self._line = line
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        threading.Thread(target=self._listen, daemon=True).start()

    # --- messages -------------------------------------------------------------------------------

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until the store has answered. Raises StoreLost."""
        if not self._wait_patiently(lambda: self._connected, timeout_s):
            raise StoreLost(self.error or NO_ANSWER)
        threading.Thread(target=self._beat, daemon=True).start()

    def join(self, node_report: Json, timeout_s: float) -> None:
        """Check in with a node report; sets ``my_id``. Raises StoreLost."""
        self._send({"join": node_report})
        if not self._wait_patiently(lambda: self.my_id >= 0, timeout_s):
            raise StoreLost(self.error or NO_ANSWER)

    def put(self, key: str, value: Json) -> None:
        """Set a key asynchronously."""
        self._send({"set": key, "value": value})

    def put_first(self, key: str, value: Json) -> None:
        """Set a key unless another node has: the first value counts for all."""
        self._send({"first": key, "value": value})

    def put_last(self, key: str, value: Json, of: int) -> None:
        """Set a key without a value as soon as this many nodes have requested it."""
        self._send({"last": key, "value": value, "of": of})

    def watch(self, key: str) -> None:
        """Request the value of a key as soon as it is set."""
        self._send({"watch": key})

    def value(self, key: str) -> Json:
        """Return the value of a watched key, or None before it came; UNREADABLE if no agent of ddp-doctor wrote it."""
        return self._values.get(key)

    def await_value(self, key: str, timeout_s: float, otherwise: str) -> None:
        """Watch a key and wait for its value. Raises StoreLost with the store's error, or ``otherwise``."""
        self.watch(key)
        if not self._wait_patiently(lambda: self.value(key) is not None, timeout_s):
            raise StoreLost(self.error or otherwise)

    def opening(self) -> Opening:
        """Return the head's first message. Raises StoreLost."""
        try:
            return Opening.model_validate(self.value("head"))
        except ValidationError as error:
            raise StoreLost(NO_HEAD) from error

    def follow(self, ids: list[int]) -> None:
        """Keep the beats of these agents."""
        now = time.monotonic()
        for agent in ids:
            self.beats.setdefault(agent, Beat(grew_at=now))
        self._send({"follow": ids})

    def put_in_beat(self, *, urgent: bool = False, **fields: Json) -> None:
        """Change the fields that are sent with every beat; ``urgent`` sends a beat at once."""
        self._fields = {**self._fields, **fields}
        if urgent:
            self._urgent.set()

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``ready()``, which is called again after all news; return False on timeout or without a store."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0 or self.error is not None:
                    return False
                self._changed.wait(min(left, 0.2))  # short: a signal is handled between two waits
        return True

    def _wait_patiently(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait like ``wait``, but do not count the time in which the client's process has no processor."""
        patience = Patience(timeout_s, [self._process.pid])
        while not (is_ready := self.wait(ready, patience.left_s())):
            if patience.is_over() or self.error is not None:
                break
        return is_ready

    def clock_offset_s(self, agent: int) -> float | None:
        """Return this node's clock minus another agent's; too large by a beat's travel time, at most 0.2 s."""
        beat = self.beats.get(agent)
        return None if beat is None else beat.ahead_s

    # --- silence --------------------------------------------------------------------------------

    def silent_s(self, agent: int) -> float:
        """Return the time since the last beat of another agent; 0 after this agent itself was stopped."""
        now = time.monotonic()
        if now < self._forgiven_until or agent not in self.beats:
            return 0.0
        return now - self.beats[agent].grew_at

    def store_silent_s(self) -> float:
        """Return the time since the store's last answer; infinite if it broke off."""
        if self.error is not None:
            return float("inf")
        now = time.monotonic()
        return 0.0 if now < self._forgiven_until else now - self._turned_at

    @property
    def has_died(self) -> bool:
        """True if the client's process was ended or stopped from outside or because memory ran out, not by a node."""
        stopped = self._helper.stopped()
        self.error = self.error or stopped
        return stopped is not None or self.error == _PROCESS_ENDED

    # --- the threads and the end ----------------------------------------------------------------

    def close(self) -> None:
        """Close the connection and end the process."""
        self._closed = True
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.join(0.5)

    def flush(self) -> None:
        """Wait until queued messages are sent, before closing; bounded, and silent about failure."""
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
            except BlockingIOError:  # the process is in a call to a frozen store, and this line is incomplete
                self.error = "ddp-doctor's TCPStore on the head node accepts no more data"
            except OSError:  # its end is seen by the listening thread
                pass

    def _listen(self) -> None:
        with suppress(OSError, ValueError), self._line, self._line.makefile("rb") as lines:
            for line in lines:
                message = from_json(line)
                with self._changed:
                    self._take(message)
                    self._changed.notify_all()
        with self._changed:
            self.error = self.error or _PROCESS_ENDED
            self._changed.notify_all()

    def _take(self, message: dict[str, Json]) -> None:
        now = time.monotonic()
        if "turn" in message:
            self._turned_at = now
        elif "beats" in message:
            for agent, fields in message["beats"].items():
                self._take_beat(int(agent), fields, now)
        elif "key" in message:
            self._values[message["key"]] = message.get("value", UNREADABLE)
        elif "joined" in message:
            self.my_id = message["joined"]
        elif "connected" in message:
            self._connected = True
        elif "error" in message:
            self.error = message["error"]

    def _take_beat(self, agent: int, fields: Json, now: float) -> None:
        """Take a beat. The store has no authentication, so an invalid beat from another program is ignored."""
        beat = self.beats.setdefault(agent, Beat())
        with suppress(ValidationError):
            message = BeatMessage.model_validate(fields)
            if message.n != beat.message.n:
                ahead = time.time() - message.at
                least = ahead if beat.ahead_s is None else min(beat.ahead_s, ahead)
                self.beats[agent] = Beat(message, now, least)

    def _beat(self) -> None:
        count, last = 0, time.monotonic()
        pause_s = max(BEAT_S, self._turn_s)
        while not self._closed and self.error is None:
            now = time.monotonic()
            if now - last > AGENT_PAUSE_S + pause_s:  # this agent was stopped, and did not read in that time
                self._forgiven_until = now + SILENT_S
                self.stopped_s = max(self.stopped_s, now - last)
            count, last = count + 1, now
            self._send({"beat": count, "fields": self._fields})
            self._urgent.wait(pause_s)
            self._urgent.clear()
