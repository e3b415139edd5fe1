"""A signal ends a run soon, and never in the middle of what others' code may not leave half done."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import FunctionType

import pytest

from ddp_doctor.starters.interruption import SIGNALS, Interrupted, interruptible
from tests.launch.agents import PATIENCE_S


class Library:
    """Foreign code that takes a lock without a ``with``, as coverage's collector and conditions do."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def work(self) -> None:
        self.lock.acquire()
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.02)
        self.lock.release()


@pytest.fixture(autouse=True)
def as_before():
    """The signal handlers, which stay ignored after a run."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def seconds_until_interrupted(work: Callable[[], None]) -> float:
    began = time.monotonic()
    with pytest.raises(Interrupted), interruptible():
        work()
    return time.monotonic() - began


@pytest.mark.serial
def test_a_library_interrupted_while_it_holds_its_lock_gives_it_back():
    library = Library()

    def work() -> None:
        library.work()
        time.sleep(5.0)

    assert seconds_until_interrupted(work) < 1.0
    assert not library.lock.locked()


@pytest.mark.serial
def test_a_library_that_waits_for_long_is_interrupted_all_the_same():
    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(5.0)

    assert seconds_until_interrupted(work) < 1.0


def test_the_doctors_own_code_is_interrupted_at_once():
    reached: list[str] = []

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append("the next line")

    own = FunctionType(
        work.__code__, {**globals(), "__name__": "ddp_doctor.ranks.trial"}, closure=work.__closure__
    )
    seconds_until_interrupted(own)

    assert reached == []


def test_after_the_first_signal_no_other_cuts_the_clean_up_short():
    reached: list[str] = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            time.sleep(5.0)
        finally:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.6)
            reached.append("the end of the clean-up")

    seconds_until_interrupted(work)

    assert reached == ["the end of the clean-up"]


#: A signal comes while the part of a run over several nodes is imported.
_INTERRUPTED_IMPORT = """
import signal, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "ddp_doctor.engine.node_run.many_nodes":
            signal.raise_signal(signal.SIGTERM)

sys.meta_path.insert(0, Finder)
sys.argv = ["ddp-doctor", "run", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "127.0.0.1:29400"]
from ddp_doctor.__main__ import main
main()
"""


def test_a_run_that_is_interrupted_while_it_imports_ends_in_one_line_and_leaves_no_trace(tmp_path):
    done = subprocess.run(
        (sys.executable, "-c", _INTERRUPTED_IMPORT),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
    )
    assert (done.returncode, done.stderr) == (130, "ddp-doctor: interrupted before anything was tested\n")
    assert not list(tmp_path.glob("ddp-doctor-crash-*"))


def test_what_nohup_or_a_shell_has_it_ignore_does_not_end_a_run_and_sigterm_does():
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGHUP)
        reached.append("the last signal")
        signal.raise_signal(signal.SIGTERM)
        time.sleep(5.0)

    reached: list[str] = []
    seconds_until_interrupted(work)

    assert reached == ["the last signal"]
