"""The events of a rank: JSON lines that the worker appends and the agent follows.

::

    {"event": "enter", "t": 8123.41, "check": "allreduce", "name": "all_reduce", "seq": 17,
     "detail": "float32 [262144] sum", "peers": [], "deadline_s": null, "queued_s": 0.2, "where": "train.py:88"}

``t`` is CLOCK_MONOTONIC, which all processes of a node share. Each line is written by one write() on an O_APPEND
descriptor, so the agent never reads half a line of a killed worker. A last line without a newline is read when it is
complete.
"""

import json
import os
import time

from ddp_doctor.model.base import Json


class EventWriter:
    """Appends events to the rank's own file."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: str, **fields: Json) -> None:
        """Append one event, stamped with the monotonic clock."""
        line = json.dumps({"event": event, "t": time.monotonic(), **fields}) + "\n"
        os.write(self._fd, line.encode())


class EventReader:
    """Follows the event file of a rank; a missing file has no events yet."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[dict[str, Json]]:
        """Return the events appended since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data.rfind(b"\n") + 1
        self._offset += complete
        return [json.loads(line) for line in data[:complete].splitlines()]
