"""Counts of a job's steps, taken from outside without a change to the job.

    bytes that gloo's threads write                      /proc/PID/task/TID/io, if no rank has a group of NCCL
    collectives that ranks have launched, by NCCL's RAS  a child asks it, as JSON (NCCL 2.28.7)
    collectives in torch's flight recorder               the child asks the server of one rank, if it is open
    numbers of steps in the output, and its lines        in files that can be read again

A thread of a gloo group that waits for work sleeps in the kernel without a timeout. In a collective, it has the timeout
of its group (torch 2.13, ProcessGroupGloo::runLoop; gloo, UnboundBuffer::waitRecv). So the fourth argument of futex(2)
in /proc/PID/task/TID/syscall shows which ranks are in a collective, without stopping a process.
"""

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from ddp_doctor.features.jobs.live_frames import GLOO_NETWORK, GLOO_WORKER, NCCL_WATCHDOG
from ddp_doctor.features.jobs.reading.steps_said import numbers_of_steps
from ddp_doctor.features.jobs.watch.evidence import Output
from ddp_doctor.features.jobs.watch.judging import Judging
from ddp_doctor.features.jobs.watch.pace import Look
from ddp_doctor.parse.json_value import json_value
from ddp_doctor.sources import proc

#: The system call number of futex on x86-64 and arm64.
_FUTEX = ("202", "98")
#: Pause between children, whose imports take 0.1 s of processor time. It doubles if a child finds no door.
_DOORS_S, _LATEST_DOORS_S = 30.0, 600.0
_DOORS_PATIENCE_S, _CHILD_S = 5.0, 20.0
_MOST_BYTES = 1 << 20
#: A number in the output that has risen this many times counts steps.
_LEAST_RISES = 3


class Source(Enum):
    """The sources of step counts, the best first: the unit, and a text that names the source."""

    GLOO = ("bytes", "measured by gloo's traffic between its ranks")
    RAS = ("collectives", "measured by NCCL RAS")
    RECORDER = ("collectives", "measured by torch's flight recorder")
    STEPS = ("steps", "measured by its output")
    LINES = ("lines", "measured by the lines of its output")


class _Thread(NamedTuple):
    rank: int | None
    pid: int
    thread: int
    works: bool  # runs collectives; otherwise, it reads from the network


class Gloo:
    """The gloo threads of the ranks."""

    def __init__(self) -> None:
        self.threads: list[_Thread] = []
        self.world_size = 0
        self._written: dict[int, int] = {}
        self._bytes = 0

    def search(self, pids: Iterable[int]) -> None:
        """Find the threads; none if a rank has a group of NCCL."""
        self.threads = []
        has_nccl = False
        for pid in sorted(pids):
            env, names = proc.environment(pid) or {}, proc.threads(pid)
            rank = proc.number(env, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
            self.world_size = proc.number(env, "WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE") or 0
            has_nccl = has_nccl or NCCL_WATCHDOG in names.values()
            self.threads += [
                _Thread(rank, pid, thread, name == GLOO_WORKER)
                for thread, name in names.items()
                if name in (GLOO_WORKER, GLOO_NETWORK)
            ]
        if has_nccl:
            self.threads = []

    def look(self, now: float) -> Look:
        """Return the bytes written so far, and the rank that others wait for."""
        inside: dict[int | None, bool] = {}
        for rank, pid, thread, works in self.threads:
            written = proc.counts(f"/proc/{pid}/task/{thread}/io").get("wchar", 0)
            self._bytes += max(written - self._written.setdefault(thread, written), 0)
            self._written[thread] = max(written, self._written[thread])
            if works:
                call = (proc.read(f"/proc/{pid}/task/{thread}/syscall") or "").split()
                waits_for_work = not call or (call[0] in _FUTEX and call[4:5] == ["0x0"])
                inside[rank] = inside.get(rank, False) or not waits_for_work
        outside = [rank for rank, is_inside in inside.items() if not is_inside]
        waits = 0 < len(outside) < len(inside)
        return Look(now, self._bytes, waits, outside[0] if waits and len(outside) == 1 else None)


class Doors:
    """The counts from doors that the ranks opened (NCCL's RAS, flight recorder), read by a child at intervals."""

    def __init__(self) -> None:
        self._file = os.memfd_create("doors")
        self._child: Judging | None = None
        self._next_s, self._pause_s = 0.0, _DOORS_S

    def look(self, now: float, pids: Collection[int]) -> tuple[Source, Look] | None:
        """Return the answer that has come since the last call, if any, and start the next child when it is time."""
        if self._child is None and now >= self._next_s:
            self._next_s = now + self._pause_s
            os.ftruncate(self._file, 0)
            self._child = Judging(lambda: _ask(pids, self._file), _CHILD_S)
        if self._child is None or not self._child.has_ended():
            return None
        self._child = None
        text = os.pread(self._file, _MOST_BYTES, 0)
        self._pause_s = _DOORS_S if text else min(2 * self._pause_s, _LATEST_DOORS_S)
        if not text:
            return None
        source, at_s, launched = json_value(text)
        behind = [int(rank) for rank, count in launched.items() if count == min(launched.values())]
        waits = len(behind) < len(launched)
        last = behind[0] if waits and len(behind) == 1 else None
        return Source[source], Look(at_s, max(launched.values()), waits, last)

    def close(self) -> None:
        """Stop the child and discard its answer."""
        if self._child:
            self._child.stop()
        os.close(self._file)


def _ask(pids: Collection[int], file: int) -> int:
    from ddp_doctor.features.jobs.reading.ras import launches
    from ddp_doctor.features.jobs.sources import live_doors
    from ddp_doctor.features.jobs.sources.live_process import candidate
    from ddp_doctor.parse.flight_recorder import read_dump

    now = time.monotonic()
    end, ranks = now + _DOORS_PATIENCE_S, [rank for pid in pids if (rank := candidate(pid))]
    port = live_doors.ras_port(ranks)
    source, launched = Source.RAS, launches(live_doors.ras_status(port, end, as_json=True) if port else "")
    if not launched:
        answers = live_doors.flight_dumps(live_doors.worker_servers(ranks[:1], end), end).values()
        counts = [sum(group.highest_seq for group in read_dump(answer, "", None).groups) for answer in answers]
        source, launched = Source.RECORDER, {0: max(counts)} if any(counts) else {}
    if launched:
        os.pwrite(file, json.dumps((source.name, now, launched)).encode(), 0)
    return 0


class Said:
    """The job's output in files: its lines, and the numbers of steps in them."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}  # offset, by path
        self._lines = 0
        self._steps: dict[str, list[int]] = {}  # by name: the highest number, how far and how often it has risen
        self._name: str | None = None  # of the number that counts steps

    def look(self, now: float, outputs: Iterable[Output]) -> Iterator[tuple[Source, Look]]:
        """Read and count the new output; only the end if it is too long."""
        for output in outputs:
            with suppress(OSError), open(output.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(min(self._read.get(output.path, output.start), size), size - _MOST_BYTES)
                file.seek(start)
                data = file.read(_MOST_BYTES)
                whole = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
                self._read[output.path] = start + len(whole)
                self._count(whole.decode("utf-8", "replace"))
        yield Source.LINES, Look(now, self._lines)
        if self._name is not None:
            yield Source.STEPS, Look(now, self._steps[self._name][1])

    def _count(self, text: str) -> None:
        self._lines += text.count("\n") or text.count("\r")
        for name, number in numbers_of_steps(text):
            steps = self._steps.setdefault(name, [number, 0, 0])
            highest = steps[0]
            if number > highest:
                steps[:] = number, steps[1] + number - highest, steps[2] + 1
                if self._name is None and steps[2] >= _LEAST_RISES:
                    self._name = name
            elif number <= highest // 2:  # the next epoch; ranks that print alternately are closer
                steps[0] = number
