"""Since when nothing has stirred in the ranks of one node.

A rank stirs that takes a step, computes, reads or writes (a file, a connection), or has a process of its own that
does: it builds a large model, compiles, loads or downloads. One that only waits does nothing of all that: two
ranks in a gloo collective used 0.00 and 0.01 s of processor in 5 s, and no byte (torch 2.13). What is looked at::

    /proc/PID/stat   utime 0.30 s, stime 0.01 s
    /proc/PID/io     rchar: 8342, wchar: 120      read(2) and write(2), of sockets too (proc(5))

What cannot be looked at counts as stirring, and so does uninterruptible sleep: it may be a slow disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_doctor.knowledge.deadlines import LOOK_S, STILL_CPU_S_PER_S
from ddp_doctor.ranks import process
from ddp_doctor.ranks.rank_state import RankState

#: Of a rank's own processes so many are looked at.
_MOST_PROCESSES = 64


@dataclass(frozen=True)
class _Used:
    cpu_s: float
    io_bytes: int


class IdleRanks:
    """Looks at the ranks once a second; ``stirs`` counts the looks in which something had stirred."""

    def __init__(self, ranks: Sequence[RankState], now: float) -> None:
        self._ranks = ranks
        self._looked_at = now
        self._used: dict[int, _Used | None] = {}
        self.stirred_at = now
        self.stirs = 0

    def look(self, now: float) -> None:
        """Look again where the last time was a second ago."""
        elapsed_s = now - self._looked_at
        if elapsed_s < LOOK_S:
            return
        self._looked_at = now
        stirring = [self._stirs(rank, elapsed_s) for rank in self._ranks if not rank.over]
        if any(stirring):
            self.stirred_at = now
            self.stirs += 1

    def _stirs(self, rank: RankState, elapsed_s: float) -> bool:
        pid = rank.worker.pid
        if pid is None:
            return True
        before, self._used[pid] = self._used.get(pid), _used(pid)
        used = self._used[pid]
        if before is None or used is None or process.state(pid) == "D":
            return True
        busy = used.cpu_s - before.cpu_s >= STILL_CPU_S_PER_S * elapsed_s
        return busy or used.io_bytes != before.io_bytes


def _used(pid: int) -> _Used | None:
    """What a rank and its processes used so far; None where that cannot be seen."""
    pids = process.with_children(pid, _MOST_PROCESSES)
    if pids is None:
        return None
    cpu = [process.cpu_seconds(one) for one in pids]
    io = [process.io_bytes(one) for one in pids]
    if cpu[0] is None or io[0] is None:
        return None
    return _Used(sum(one or 0.0 for one in cpu), sum(one or 0 for one in io))
