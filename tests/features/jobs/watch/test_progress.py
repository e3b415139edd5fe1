"""The counts of a main thread that mean that its rank moves."""

import itertools
import os
import signal
import subprocess
import sys

import pytest

from ddp_doctor.features.jobs.watch import progress
from ddp_doctor.features.jobs.watch.progress import Progress, _Counts, _Rank
from ddp_doctor.ranks.process import started as started_at
from ddp_doctor.sources.proc import stat_fields
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("cpu_s", "io_bytes", "sleeps", "queued_s", "on_gpu", "moves"),
    [
        pytest.param(0.0, 0, 0, 0.0, False, False, id="it waits in gloo"),
        pytest.param(0.03, 0, 900, 0.0, False, False, id="it polls every 10 ms"),
        pytest.param(10.0, 0, 3, 0.0, True, False, id="it spins in NCCL"),
        pytest.param(10.0, 0, 3, 0.0, False, True, id="it computes on a processor"),
        pytest.param(10.0, 0, 400, 0.0, True, True, id="it launches kernels and waits for batches"),
        pytest.param(0.0, 12, 1, 0.0, True, True, id="it prints a line"),
        pytest.param(0.1, 0, 900, 0.0, False, True, id="it takes many short steps"),
        pytest.param(3.0, 0, 1, 0.0, True, True, id="it uses a third of a processor"),
        pytest.param(3.0, 0, 1, 6.9, True, False, id="it spins in NCCL on a busy machine"),
    ],
)
def test_rank_makes_progress_by_computing_or_io_but_not_by_spinning(cpu_s, io_bytes, sleeps, queued_s, on_gpu, moves):
    rank = _Rank(1, 1, on_gpu, _Counts(100.0, 50.0, 1_000, 70), 100.0)

    assert progress._has_moved(rank, _Counts(110.0, 50.0 + cpu_s, 1_000 + io_bytes, 70 + sleeps, queued_s)) is moves


@pytest.fixture
def job():
    pipe = subprocess.PIPE
    scripts = ("input()", "input()", "while True: pass")
    started = [
        subprocess.Popen((sys.executable, "-S", "-uc", f"print()\n{text}"), stdin=pipe, stdout=pipe) for text in scripts
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    # after the line, they only wait in input()
    wait_until(lambda: all(stat_fields(process.pid)[0] == "S" for process in started[:2]))
    yield {process.pid: started_at(process.pid) for process in started}
    for process in started:
        process.kill()
        process.communicate()


WORKER = """
import sys, threading
import job
open("/proc/self/comm", "w").write(sys.argv[1])
thread = threading.Thread(target=job.work, daemon=True)
thread.start()
print(thread.native_id, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("name", "in_thread"), [("ray::Worker", True), ("python3", False)])
def test_training_thread_is_found_in_ray_and_plain_workers(tmp_path, name, in_thread):
    (tmp_path / "job.py").write_text("import threading\n\ndef work():\n    threading.Event().wait()\n")
    pipe = subprocess.PIPE
    command = (sys.executable, "-c", WORKER, name)
    with subprocess.Popen(command, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdout is not None
        expected = int(worker.stdout.readline()) if in_thread else worker.pid

        wait_until(lambda: progress._thread_that_trains(worker.pid) == expected, "the thread is found")


def test_job_is_stalled_if_one_of_its_ranks_is(job, monkeypatch):
    clock = itertools.count(1_000, 10)
    monkeypatch.setattr(progress, "_ranks_below", lambda _roots: job)
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(progress, "_has_moved", lambda rank, now: now.cpu_s > rank.counts.cpu_s)
    ranks = Progress()

    assert ranks.look([], 1e9) == 0.0
    assert set(ranks.pids()) == set(job)
    busy = list(job)[2]
    before = progress._counts_of(busy, busy)
    assert before is not None
    wait_until(lambda: (now := progress._counts_of(busy, busy)) and now.cpu_s > before.cpu_s)
    assert ranks.look([], 1e9) > 0
    assert ranks.look([], 0.0) <= 0.0, "after a gap all begins again"

    os.kill(busy, signal.SIGKILL)
    os.waitid(os.P_PID, busy, os.WEXITED | os.WNOWAIT)
    job.pop(busy)
    ranks.look([], 1e9)
    assert set(ranks.pids()) == set(job)
