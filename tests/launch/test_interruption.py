"""A signal ends a run soon, and never in the middle of what others' code may not leave half done."""

import signal
import threading
import time

import pytest

from ddp_doctor.launch.interruption import Interrupted, interruptible


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


def test_a_library_interrupted_while_it_holds_its_lock_gives_it_back():
    library = Library()
    began = time.monotonic()
    with pytest.raises(Interrupted), interruptible():
        library.work()
        time.sleep(5.0)

    assert not library.lock.locked()
    assert time.monotonic() - began < 1.0


def test_a_library_that_waits_for_long_is_interrupted_all_the_same():
    began = time.monotonic()
    with pytest.raises(Interrupted), interruptible():
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(5.0)

    assert time.monotonic() - began < 1.0


def test_the_doctors_own_code_is_interrupted_at_once():
    own = {"__name__": "ddp_doctor.launch.trial", "signal": signal, "reached": []}
    with pytest.raises(Interrupted), interruptible():
        exec("signal.raise_signal(signal.SIGINT)\nreached.append('the next line')", own)  # noqa: S102 - constant

    assert own["reached"] == []


def test_after_the_first_signal_no_other_cuts_the_clean_up_short():
    cleaned = False
    with pytest.raises(Interrupted), interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
            time.sleep(5.0)
        finally:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.6)
            cleaned = True

    assert cleaned
