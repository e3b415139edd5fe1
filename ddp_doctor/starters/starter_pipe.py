"""The pipe from the command that starts all agents to each of them: the agent's stdin.

The starter writes one JSON object a line::

    {"host": "node2", "failed": "Permission denied (publickey)."}     an agent that could not be started
    {"signal": 2}                                                     the user pressed Ctrl-C
    {"headless": true}                                                the head's agent is gone

When the pipe closes, the starter or the way to it (ssh, srun) is gone. The agent then ends too, so that
nothing is left on its host.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress

from ddp_doctor.facts.cluster.roll_call import NotStarted
from ddp_doctor.ranks.interruption import SIGNALS

#: Set to 1 for an agent that was started by another ddp-doctor.
VARIABLE = "DDP_DOCTOR_STARTER_PIPE"
#: Longest that an agent may take for its partial report once the pipe has closed.
_LAST_S = 30.0
#: Failures kept; a starter has at most one for each host.
_MOST = 65_536


class StarterPipe:
    """The starter's messages so far; none for an agent that no starter started."""

    def __init__(self) -> None:
        self._failures: list[NotStarted] = []
        self._is_headless = threading.Event()
        self._is_in_roll_call = threading.Event()
        self._when_met: list[Callable[[], None]] = []

    def not_started(self) -> tuple[NotStarted, ...]:
        """The hosts whose agents the starter could not start, or saw end."""
        return tuple(self._failures)

    @contextmanager
    def roll_call(self) -> Iterator[None]:
        """While this agent waits to meet the head: if the head is gone, the run ends as by a signal.

        Later the agents notice by themselves that the head is silent, and report what they know.
        """
        self._is_in_roll_call.set()
        try:
            self._end_if_headless()
            yield
        finally:
            self._is_in_roll_call.clear()

    def when_met(self, tell: Callable[[], None]) -> None:
        """Have this called once the nodes have met."""
        self._when_met.append(tell)

    def met(self) -> None:
        """The roll call is over, and the nodes have met."""
        for tell in self._when_met:
            tell()

    def follow(self, fd: int) -> None:
        """Read the pipe until it closes, then end this process."""
        with suppress(OSError), os.fdopen(fd, "rb") as lines:
            for line in lines:
                with suppress(ValueError, TypeError, KeyError):
                    self._take(json.loads(line))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_LAST_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _take(self, message: dict[str, object]) -> None:
        if "signal" in message and message["signal"] in {int(number) for number in SIGNALS}:
            os.kill(os.getpid(), int(str(message["signal"])))
        elif "headless" in message:
            self._is_headless.set()
            self._end_if_headless()
        elif "host" in message and len(self._failures) < _MOST:
            reason = str(message["failed"])[:1000]
            self._failures.append(NotStarted(hostname=str(message["host"]), reason=reason))

    def _end_if_headless(self) -> None:
        if self._is_headless.is_set() and self._is_in_roll_call.is_set():
            os.kill(os.getpid(), signal.SIGTERM)


def take(env: MutableMapping[str, str]) -> StarterPipe | None:
    """The pipe of the command that started this process, None where a person or a launcher started it.

    The pipe is read from now on, and ``env`` forgets it. Call once, before anything is started: what this
    process starts must not read its stdin.
    """
    if env.pop(VARIABLE, "") != "1":
        return None
    os.environ.pop(VARIABLE, None)
    fd = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    pipe = StarterPipe()
    threading.Thread(target=pipe.follow, args=(fd,), daemon=True, name="starter-pipe").start()
    return pipe
