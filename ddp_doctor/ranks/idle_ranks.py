"""Measure since when all ranks of a node have been idle.

A rank is active when it takes a step, computes, reads or writes (a file, a connection), or when a process started by it
does: it builds a large model, compiles, loads or downloads. A rank that only waits does none of this: two ranks in a
gloo collective used 0.00 and 0.01 s of CPU time in 5 s, and no byte (torch 2.13). The sources are::

    /proc/PID/stat   utime 0.30 s, stime 0.01 s
    /proc/PID/io     rchar: 8342, wchar: 120      read(2) and write(2), of sockets too (proc(5))

A rank counts as active in three more cases. Its usage cannot be read. A thread of its processes is in uninterruptible
sleep, because it may wait for a slow disk. Or a thread has been ready to run since the last sample: on a busy machine
it may wait for a processor, and a thread of gloo moves the data while the main thread sleeps. A thread other than the
main one that has slept in this time did get a processor and found nothing to do: gloo's thread polls 100 times per
second, so on a busy machine it is often found ready. The main thread also sleeps to release the interpreter lock.
"""

from collections.abc import Sequence

from ddp_doctor.knowledge.deadlines import LOOK_S, STILL_CPU_S_PER_S
from ddp_doctor.ranks import process
from ddp_doctor.ranks.rank_state import RankState
from ddp_doctor.sources import proc

#: Maximum number of processes to read per rank.
_MOST_PROCESSES = 64


class IdleRanks:
    """Samples the ranks once per second; ``activity`` counts the samples with an active rank."""

    def __init__(self, ranks: Sequence[RankState], now: float) -> None:
        self._ranks = ranks
        self._read_at = now
        self._used: dict[int, tuple[float, int] | None] = {}  # CPU seconds, bytes read and written
        self._ready: dict[int, set[tuple[int, str]]] = {}
        self.active_at = now
        self.activity = 0

    def update(self, now: float) -> None:
        """Read the ranks again, at most once per second."""
        elapsed_s = now - self._read_at
        if elapsed_s < LOOK_S:
            return
        self._read_at = now
        active = [self._is_active(rank, elapsed_s) for rank in self._ranks if not rank.over]
        if any(active):
            self.active_at = now
            self.activity += 1

    def _is_active(self, rank: RankState, elapsed_s: float) -> bool:
        pid = rank.worker.pid
        if pid is None:
            return True
        before, self._used[pid] = self._used.get(pid), _used(pid)
        ready_before, self._ready[pid] = self._ready.get(pid, set()), _in_state("R", pid)
        used = self._used[pid]
        if before is None or used is None or used[1] != before[1]:
            return True
        computes = used[0] - before[0] >= STILL_CPU_S_PER_S * elapsed_s
        return computes or bool(ready_before & self._ready[pid] or _in_state("D", pid))


def _in_state(state: str, pid: int) -> set[tuple[int, str]]:
    """Return the threads in this state of the rank's processes, non-main threads with their number of sleeps."""
    return {
        (thread, "" if thread == each else proc.status(each, thread).get("voluntary_ctxt_switches", ""))
        for each in process.with_children(pid, _MOST_PROCESSES) or [pid]
        for thread in proc.thread_ids(each)
        if proc.stat_fields(each, thread)[:1] == [state]
    }


def _used(pid: int) -> tuple[float, int] | None:
    """Return the usage of a rank and its processes, or None if the kernel does not show it."""
    pids = process.with_children(pid, _MOST_PROCESSES)
    if pids is None:
        return None
    cpu_s = [process.cpu_seconds(pid) for pid in pids]
    io_bytes = [proc.io_bytes(pid) for pid in pids]
    if cpu_s[0] is None or io_bytes[0] is None:
        return None
    return sum(used or 0.0 for used in cpu_s), sum(used or 0 for used in io_bytes)
