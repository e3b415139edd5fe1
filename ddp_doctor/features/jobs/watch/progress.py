"""The progress of a job's ranks, seen from outside by the kernel's counts for their main threads.

It costs a few reads of /proc per rank, and only raises a suspicion: `attach` finds out whether a rank that uses no
processor time hangs, or waits for another one that writes a checkpoint.

    uses almost no processor time, reads and writes nothing   does not move: gloo waits like this, and blocking NCCL
    spins and never sleeps, in a process that uses a GPU      does not count as moving: NCCL may wait like this
    anything else                                             moves
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ddp_doctor.features.jobs.sources.live_jobs import Host
from ddp_doctor.ranks import process
from ddp_doctor.sources import proc

#: Maximum number of processes of a job to check.
_MOST_PROCESSES = 4_096
#: A thread that polls every 10 ms uses 0.2% of a processor (judgment).
_IDLE_CPU_SHARE = 0.005
_SPIN_CPU_SHARE = 0.9
_SPIN_SLEEPS_PER_S = 2.0
#: Pause between searches of the node's processes, which cost more than samples of the known ranks.
_SEARCH_S = 30.0
#: Names of processes whose main thread trains; Ray's workers have other names.
_OF_PYTHON = ("python", "pt_")
#: Time limit of one stack.
_STACK_S = 2.0
#: A launcher starts some seconds before its ranks.
_BEGINNING_S = 300.0


@dataclass(frozen=True)
class _Counts:
    at_s: float
    cpu_s: float
    io_bytes: int
    sleeps: int
    queued_s: float = 0.0  # it was ready to run but had no processor


@dataclass
class _Rank:
    pid: int
    started: int
    on_gpu: bool
    counts: _Counts
    moved_s: float  # monotonic, when it was last seen to move
    thread: int = 0  # the thread that trains


@dataclass
class Progress:
    """The ranks below some processes, sampled repeatedly."""

    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _begun_s: float = 0.0  # monotonic, like those below
    _searched_s: float = 0.0
    _looked_s: float | None = None

    def pids(self) -> tuple[int, ...]:
        """Return the pids of the ranks that were alive at the last sample."""
        return tuple(self._ranks)

    def look(self, roots: Iterable[int], longest_gap_s: float) -> float:
        """Sample the ranks, and return the seconds for which some rank has not moved.

        After a gap, in which this process was stopped or the machine slept, the times start again.
        """
        now = time.monotonic()
        if self._looked_s is not None and now - self._looked_s > longest_gap_s:
            for rank in self._ranks.values():
                rank.moved_s = now
        self._looked_s = now
        self._begun_s = self._begun_s or now
        is_beginning = not self._ranks and now - self._begun_s < _BEGINNING_S
        all_live = all(process.started(pid) == rank.started for pid, rank in self._ranks.items())
        if is_beginning or now - self._searched_s > _SEARCH_S or not all_live:
            self._searched_s = now
            self._search(roots, now)
        for rank in self._ranks.values():
            counts = _counts_of(rank.pid, rank.thread)
            if counts is not None:
                if _has_moved(rank, counts):
                    rank.moved_s = now
                rank.counts = counts
        return max((now - rank.moved_s for rank in self._ranks.values()), default=0.0)

    def _search(self, roots: Iterable[int], now: float) -> None:
        found = _ranks_below(roots)
        known = {pid: rank for pid, rank in self._ranks.items() if found.get(pid) == rank.started}
        for rank in known.values():
            rank.on_gpu = rank.on_gpu or _uses_gpu(rank.pid)
            if rank.thread == rank.pid and (thread := _thread_that_trains(rank.pid)) != rank.pid:
                rank.thread, rank.moved_s = thread, now
                rank.counts = _counts_of(rank.pid, thread) or rank.counts
        if known.keys() != found.keys():  # the job has restarted or just begun
            for rank in known.values():
                rank.moved_s = now
        for pid, started in found.items():
            if pid not in known and (counts := _counts_of(pid, pid)) is not None:
                known[pid] = _Rank(pid, started, _uses_gpu(pid), counts, now, pid)
        self._ranks = known


def _ranks_below(roots: Iterable[int]) -> dict[int, int]:
    tree = {pid for root in roots for pid in process.with_children(root, _MOST_PROCESSES) or (root,)}
    starts = {rank.pid: process.started(rank.pid) for rank in Host(tree).ranks()}
    return {pid: started for pid, started in starts.items() if started is not None}


def _uses_gpu(pid: int) -> bool:
    return "/dev/nvidia" in (proc.read(f"/proc/{pid}/maps") or "")


def _thread_that_trains(pid: int) -> int:
    """Return the main thread, or the thread with the job's code in a framework's worker, whose main thread polls."""
    name = (proc.read(f"/proc/{pid}/comm") or "").strip()
    if name.startswith(_OF_PYTHON):
        return pid
    from ddp_doctor.features.jobs.sources.live_stacks import stacks  # starts py-spy: only for workers such as Ray's

    return stacks([pid], os.environ, time.monotonic() + _STACK_S)[pid].thread or pid


def _counts_of(pid: int, thread: int) -> _Counts | None:
    where = f"/proc/{pid}/task/{thread}"
    fields, io = proc.stat_fields(pid, thread), proc.counts(f"{where}/io")
    if not fields or fields[0] in "ZX":
        return None
    sleeps = proc.counts(f"{where}/status").get("voluntary_ctxt_switches", 0)
    ran_s, queued_s = proc.run_and_queued_s(pid, thread)
    cpu_s = ran_s or proc.seconds(fields)
    return _Counts(time.monotonic(), cpu_s, io.get("rchar", 0) + io.get("wchar", 0), sleeps, queued_s)


def _has_moved(rank: _Rank, now: _Counts) -> bool:
    before = rank.counts
    seconds = max(now.at_s - before.at_s, 0.01)
    cpu_share = (now.cpu_s - before.cpu_s) / seconds
    queued_share = (now.queued_s - before.queued_s) / seconds
    spins = cpu_share + queued_share > _SPIN_CPU_SHARE and (now.sleeps - before.sleeps) / seconds < _SPIN_SLEEPS_PER_S
    return now.io_bytes != before.io_bytes or (cpu_share > _IDLE_CPU_SHARE and not (spins and rank.on_gpu))
