"""The line from the command that starts all agents to each of them: its stdin, for as long as it lives.

The starter writes one JSON object a line::

    {"host": "node2", "failed": "Permission denied (publickey)."}     an agent that could not be started
    {"signal": 2}                                                     the user pressed Ctrl-C
    {"headless": true}                                                the head's agent is gone

When the line ends, the starter or the way to it (ssh, srun) is gone: the agent ends too, so that
nothing is left on its host.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress

from ddp_doctor.facts.roll_call import NotStarted
from ddp_doctor.ranks.interruption import SIGNALS

#: Set to 1 for an agent that was started by another ddp-doctor.
VARIABLE = "DDP_DOCTOR_LEASH"
#: Longest that an agent may take for its partial report once the line has ended.
_LAST_S = 30.0
#: Failures kept; a starter has at most one for each host.
_MOST = 65_536
_failures: "list[NotStarted]" = []
_is_headless = threading.Event()
_is_in_roll_call = threading.Event()
_when_met: list[Callable[[], None]] = []


def take(env: MutableMapping[str, str]) -> bool:
    """Whether this process is on a leash; if so it is read from now on, and ``env`` forgets it.

    Call once, before anything is started: what this process starts must not read its stdin.
    """
    if env.pop(VARIABLE, "") != "1":
        return False
    os.environ.pop(VARIABLE, None)
    line = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_follow, args=(line,), daemon=True, name="leash").start()
    return True


def not_started() -> "tuple[NotStarted, ...]":
    """The hosts whose agents the starter could not start, or saw end, as far as it has told."""
    return tuple(_failures)


@contextmanager
def roll_call() -> Iterator[None]:
    """While this agent waits to meet the head: one that is gone already ends the run as a signal would.

    Later the agents see for themselves that the head falls silent, and say what they know.
    """
    _is_in_roll_call.set()
    try:
        _end_if_headless()
        yield
    finally:
        _is_in_roll_call.clear()


def when_met(tell: Callable[[], None]) -> None:
    """Have this called once the nodes have met."""
    _when_met.append(tell)


def met() -> None:
    """The roll call is over, and the nodes have met."""
    for tell in _when_met:
        tell()


def _end_if_headless() -> None:
    if _is_headless.is_set() and _is_in_roll_call.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def _follow(line: int) -> None:
    with suppress(OSError), os.fdopen(line, "rb") as words:
        for text in words:
            with suppress(ValueError, TypeError, KeyError):
                _heed(json.loads(text))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LAST_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _heed(said: dict[str, object]) -> None:
    if "signal" in said and said["signal"] in {int(one) for one in SIGNALS}:
        os.kill(os.getpid(), int(str(said["signal"])))
    elif "headless" in said:
        _is_headless.set()
        _end_if_headless()
    elif "host" in said and len(_failures) < _MOST:
        _failures.append(NotStarted(hostname=str(said["host"]), reason=str(said["failed"])[:1000]))
