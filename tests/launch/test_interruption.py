"""A signal ends a run soon, and never in the middle of what others' code may not leave half done."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from ddp_doctor.starters.interruption import SIGNALS, Interrupted, interruptible
from tests.waiting import LIMIT_S, wait_forever

pytestmark = pytest.mark.ranks


class Library:
    """Foreign code that takes a lock without a ``with``, as coverage's collector and conditions do."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def work(self) -> None:
        self.lock.acquire()
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait(0.02)  # some alarms come
        self.lock.release()


@pytest.fixture(autouse=True)
def as_before():
    """The signal handlers, which stay ignored after a run."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interruptibly(work: Callable[[], None]) -> None:
    with interruptible() as interruption:
        interruption.arm()
        work()


def until_interrupted(work: Callable[[], None]) -> None:
    with pytest.raises(Interrupted):
        interruptibly(work)


def test_library_interrupted_while_it_holds_its_lock_releases_it(monkeypatch: pytest.MonkeyPatch):
    library, now = Library(), [100.0]
    monkeypatch.setattr("ddp_doctor.starters.interruption.time", SimpleNamespace(monotonic=lambda: now[0]))

    def work() -> None:
        library.work()
        now[0] += 1.0
        wait_forever()

    until_interrupted(work)
    assert not library.lock.locked()


def test_library_that_waits_for_long_is_interrupted():
    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        wait_forever()

    until_interrupted(work)


def test_an_alarm_that_is_lost_is_not_the_last():
    """Lose an alarm that arrives between the interpreter's last check of signals and a blocking call."""

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        signal.sigtimedwait({signal.SIGALRM}, 0.1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        wait_forever()

    until_interrupted(work)


def test_own_code_of_ddp_doctor_is_interrupted_immediately():
    reached: list[str] = []

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append("the next line")

    own = FunctionType(work.__code__, {**globals(), "__name__": "ddp_doctor.ranks.trial"}, closure=work.__closure__)
    until_interrupted(own)

    assert reached == []


def test_further_signals_do_not_interrupt_the_cleanup():
    pending: list[tuple[float, float]] = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            wait_forever()
        finally:
            signal.raise_signal(signal.SIGINT)
            pending.append(signal.getitimer(signal.ITIMER_REAL))

    until_interrupted(work)

    assert pending == [(0.0, 0.0)]


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


#: A second signal comes when the directory of a run exists but its cleanup is not yet registered.
_INTERRUPTED_FOLDER = """
import signal, sys
from ddp_doctor.__main__ import main
from ddp_doctor.ranks import folders

def made(make=folders.make_run_folder):
    folder = make()
    signal.raise_signal(signal.SIGTERM)
    return folder

folders.make_run_folder = made
sys.argv = ["ddp-doctor", "run", "--nproc-per-node", "1", "--only", "process_group"]
main()
"""


def _interrupted(script: str, folder: Path, **given: Any) -> "subprocess.CompletedProcess[str]":
    own = {"TMPDIR": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(
        (sys.executable, "-c", script),
        check=False,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **own},
        **{"capture_output": True} | given,
    )
    assert done.returncode == 130
    assert not list(folder.glob("ddp-doctor-*"))
    return done


def test_run_interrupted_during_its_imports_ends_in_one_line_and_no_traces(tmp_path):
    said = _interrupted(_INTERRUPTED_IMPORT, tmp_path).stderr

    assert said == "ddp-doctor: interrupted before anything was tested\n"


def test_run_interrupted_without_a_reader_leaves_no_traces(tmp_path):
    read, write = os.pipe()
    os.close(read)

    _interrupted(_INTERRUPTED_IMPORT, tmp_path, capture_output=False, stdout=write, stderr=write)
    os.close(write)


def test_run_interrupted_while_it_creates_its_directory_leaves_no_directory(tmp_path):
    assert "Interrupted: " in _interrupted(_INTERRUPTED_FOLDER, tmp_path).stdout


def test_signals_ignored_by_nohup_or_a_shell_do_not_end_a_run_but_sigterm_does():
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGHUP)
        reached.append("the last signal")
        signal.raise_signal(signal.SIGTERM)
        wait_forever()

    reached: list[str] = []
    until_interrupted(work)

    assert reached == ["the last signal"]
