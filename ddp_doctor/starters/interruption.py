"""Turn SIGINT, SIGTERM and SIGHUP into one exception, once; later signals are ignored."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: Signals that end a run early.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Time for a library that the signal interrupts to finish its call, and release a lock that it holds.
_COURTESY_S = 0.3
_ASK_AGAIN_S = 0.005


class Interrupted(BaseException):
    """The run must end now, with a partial report."""


class Interruption:
    """The state of a run's signal handling."""

    def __init__(self) -> None:
        self._armed = False
        self._has_come = False  # a signal came while signals were not handled
        self._since: float | None = None  # monotonic time of the first signal

    def arm(self) -> None:
        """Handle signals from now, including one already received. Call when the cleanup is in place."""
        self._armed = not self._has_come
        if self._has_come:
            raise Interrupted

    def disarm(self) -> None:
        """Ignore signals from now: cleaning up must not be cut short."""
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def handle(self, _number: int, frame: FrameType | None) -> None:
        """Raise Interrupted at the first signal, as soon as ddp-doctor's own code runs.

        An exception in a library's code may leave its lock taken, and the next thread that needs it hangs.
        """
        if not self._armed:
            self._has_come = True
            return
        now = time.monotonic()
        self._since = self._since or now
        name = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
        is_library = name.partition(".")[0] not in ("ddp_doctor", "__main__")
        if is_library and now - self._since < _COURTESY_S:
            # Repeatedly, because a signal just before the library begins to wait does not wake it.
            signal.setitimer(signal.ITIMER_REAL, _ASK_AGAIN_S, _ASK_AGAIN_S)
            return
        self.disarm()
        raise Interrupted


def heeded() -> list[signal.Signals]:
    """Return the signals that end this run early, without signals that nohup or a background shell ignores."""
    return [each for each in SIGNALS if each is signal.SIGTERM or signal.getsignal(each) is not signal.SIG_IGN]


@contextmanager
def calling(note: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call this at each of the signals while the block runs; main thread only."""
    before = {number: signal.signal(number, note) for number in heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Handle the signals while the block runs, once arm() was called; main thread only.

    Afterwards they stay ignored, because the recording must still be saved and shown.
    """
    interruption = Interruption()
    for number in (*heeded(), signal.SIGALRM):
        signal.signal(number, interruption.handle)
    try:
        yield interruption
    finally:
        interruption.disarm()
