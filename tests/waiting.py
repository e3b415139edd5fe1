"""Waits of the tests: for a condition, with one limit that also suits a busy machine."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

#: Longest wait for a condition, in seconds. Only a failing test waits this long.
LIMIT_S = 140.0
#: For every agent that meets another: on a busy machine, one takes longer than the default to start.
JOIN_LATE = ("--join-timeout", f"{LIMIT_S:g}")
#: Pause between two evaluations of a condition, in seconds.
_PAUSE_S = 0.01

Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value], what: str = "", limit_s: float = LIMIT_S) -> Value:
    """Return the first true value of the condition. Raises AssertionError with ``what`` at the limit."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not true within {limit_s:g} s: {what or condition}")
        time.sleep(_PAUSE_S)
    return value


def limits_s(first: float) -> Iterator[float]:
    """Yield longer and longer time limits for a program that hangs: on a busy machine it may need time to start."""
    while first < LIMIT_S:
        yield first
        first *= 2


def wait_forever() -> NoReturn:
    """Block until the process is killed, like a rank that hangs."""
    while True:
        threading.Event().wait()
