"""Processes of ddp-doctor that ranks need: the forkserver, the control store, torchrun."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field

from ddp_doctor.knowledge.deadlines import HELPER_STOPPED_S, LOOK_S
from ddp_doctor.model.recording import OWN_PROCESS
from ddp_doctor.ranks import process

#: Signals that no program sends itself: a process that died of one was killed from outside, or by the kernel.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class HelperLost(Exception):
    """A helper does not serve; the message names it and the reason. No rank is the cause of the resulting failure."""


@dataclass
class Helper:
    """A helper process. If it is stopped (SIGSTOP, a debugger), the agent waits a moment before it counts as lost."""

    name: str
    pid: int
    _stopped_s: float = field(default=0.0, init=False)
    _looked_at: float | None = field(default=None, init=False)  # monotonic

    def lost(self) -> str | None:
        """Return why the helper does not serve, or None. Repeated calls measure how long it was stopped."""
        if process.has_ended(self.pid):
            return self._words("is gone: killed from outside, or for lack of memory")
        return self.stopped()

    def stopped(self) -> str | None:
        """Return the same for a helper that may exit on its own."""
        now, letter = time.monotonic(), process.state(self.pid)
        if letter not in ("T", "t"):
            self._stopped_s, self._looked_at = 0.0, None
            return None
        # Time while the agent was also stopped (Ctrl-Z) does not count.
        self._stopped_s += min(now - (self._looked_at or now), LOOK_S)
        self._looked_at = now
        return self._words(f"is stopped (state {letter})") if self._stopped_s >= HELPER_STOPPED_S else None

    def _words(self, what: str) -> str:
        return f"{OWN_PROCESS} {what}: {self.name}, pid {self.pid}"


def was_killed(pid: int) -> bool:
    """Return True if a child of this process, not yet reaped, was killed from outside; False if unknown."""
    with suppress(ChildProcessError):
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None and ended.si_code == os.CLD_KILLED and ended.si_status in FROM_OUTSIDE
    return False
