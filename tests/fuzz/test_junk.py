"""Junk of several kinds, up to ten megabytes of it: each parser answers or refuses, in bounded time and memory."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz.machine_targets import MACHINE_TARGETS
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]

#: Quadratic time exceeds the limit even with the smaller size of continuous integration. `lint` refuses this size.
LARGE_BYTES = 1_200_000 if "CI" in os.environ else 10_000_000
#: For files of /proc and /sys, which are never near ten megabytes.
MEDIUM_BYTES = 1_000_000
#: Limit per byte, in turns of an empty loop timed next to it, because a shared machine has slow minutes. Generous: the
#: slowest parser needs a third of it.
MOST_TURNS = 300
TURNS = 500_000
#: Shorter than any turn: a parser that takes less than MOST_TURNS of these does not need the loop.
SHORTEST_TURN_S = 1e-9
#: A late input is read again: the machine may have changed its pace between the parser and the loop.
TRIES = 3
#: The same as an absolute limit in seconds of processor time: this may run at the lowest priority next to other load.
LONGEST_S = 90.0
#: Times the size of the junk. A list of the lines "a" takes 30 times theirs.
MOST_MEMORY = 64
#: For a process, whatever it reads: caches of compiled patterns, reclaimed pages.
IN_ANY_CASE_BYTES = 16_000_000
#: A runaway parser gets a MemoryError here, before the machine is affected.
HARD_LIMIT_BYTES = 4 * 2**30

LOG_LINE = "2026-01-15 10:00:00.123 node17:8811:8840 [3] NCCL INFO Channel 03/0 : 7[7] -> 0[0] via P2P/CUMEM\n"
JUNK: Mapping[str, str] = {
    "one line": "a",
    "zero bytes": "\0",
    "digits": "1234567890",
    "blank lines": "\n",
    "words in lines": "GPU0 \t",
    "brackets that open": "[",
    "objects that open": '{"a":',
    "brackets in brackets": "[[1-2],",
    "commas": "0,",
    "assignments": "NCCL_IB_HCA=mlx5_0\n",
    "lines of a log": LOG_LINE,
}


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status_bytes("VmSize") + HARD_LIMIT_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def _tests() -> Iterator[object]:
    for target in TARGETS:
        yield pytest.param(target, MEDIUM_BYTES if target in MACHINE_TARGETS else LARGE_BYTES, id=target.name)


@pytest.mark.parametrize(("target", "size_bytes"), [*_tests()])
def test_junk_of_every_kind_is_read_or_refused_in_bounded_time_and_memory(target: Target, size_bytes: int):
    first = next(seed for seed in target.seeds if seed)
    pieces = {**JUNK, "valid texts": first, "first lines": f"{first.splitlines()[0]}\n"}
    for kind, piece in pieces.items():
        text = (piece * (size_bytes // len(piece) + 1))[:size_bytes]
        for tried in range(1, TRIES + 1):
            turns, grown_bytes = _cost(target, text)
            assert grown_bytes < MOST_MEMORY * size_bytes + IN_ANY_CASE_BYTES, kind
            if turns < MOST_TURNS * size_bytes:
                break
            assert tried < TRIES, f"{kind}: took as long as {turns / size_bytes:.0f} turns of a loop a byte"


def _cost(target: Target, text: str) -> tuple[float, int]:
    """Return the turns of an empty loop that take as long (0.0 if quick), and by how many bytes the process grew."""
    with _peak() as memory:
        took_s = _cpu_s(lambda: _call(target, text))
    is_quick = took_s < SHORTEST_TURN_S * MOST_TURNS * len(text)
    return 0.0 if is_quick else took_s / _cpu_s(_loop) * TURNS, memory["grown_bytes"]


def _cpu_s(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _loop() -> None:
    for _ in range(TURNS):
        pass


def _call(target: Target, text: str) -> None:
    with _ends_after(LONGEST_S):
        try:
            target.call(text)
        except target.refuses:
            return


@contextmanager
def _ends_after(limit_s: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"still reading after {limit_s:g} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _peak() -> Iterator[dict[str, int]]:
    """Measure the growth of the process; resets the kernel's peak if that is permitted."""
    grown: dict[str, int] = {}
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
    except OSError:
        before = _status_bytes("VmHWM")
    yield grown
    grown["grown_bytes"] = max(_status_bytes("VmHWM") - before, 0)


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, name
    return int(found[1]) * 1024
