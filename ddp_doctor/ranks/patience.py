"""Time limits that do not count the time processes wait for a processor."""

import time
from collections.abc import Iterable

from ddp_doctor.knowledge.deadlines import LOOK_S, MOST_QUEUED
from ddp_doctor.sources import proc


class Patience:
    """The time that some processes get; it is over after ``1 + MOST_QUEUED`` times the limit at the latest."""

    def __init__(self, limit_s: float, pids: Iterable[int | None]) -> None:
        self._limit_s, self._began = limit_s, time.monotonic()
        self._queued_s = {pid: proc.queued_s(pid) for pid in pids if pid is not None}

    def left_s(self) -> float:
        """Return the time that is left, which grows while a process has no processor."""
        left_s = self._began + self._limit_s - time.monotonic()
        if left_s > LOOK_S:
            return left_s
        # The sum falls when a thread exits, because the kernel drops its counters.
        queued_s = max(0.0, 0.0, *(proc.queued_s(pid) - before for pid, before in self._queued_s.items()))
        return left_s + min(queued_s, MOST_QUEUED * self._limit_s)

    def forgive(self, pause_s: float) -> None:
        """Do not count a pause of the agent itself."""
        self._began += pause_s

    def is_over(self) -> bool:
        """Return True if the processes had their time."""
        return self.left_s() < 0.0
