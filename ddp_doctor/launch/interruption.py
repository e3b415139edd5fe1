"""SIGINT, SIGTERM and SIGHUP become one exception, once; after that they are ignored."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What ends a run early.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The run is to end now, with a partial report."""


class Interruption:
    """The state of a run's signal handling."""

    def __init__(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        """From now on signals are ignored: cleaning up must not be cut short."""
        self._armed = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Raise Interrupted at the first signal."""
        if self._armed:
            self._armed = False
            raise Interrupted


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Handle the signals while the block runs; main thread only.

    Afterwards they stay ignored: what was seen is still to be saved and shown.
    """
    interruption = Interruption()
    for number in SIGNALS:
        signal.signal(number, interruption.handle)
    try:
        yield interruption
    finally:
        interruption.disarm()
