"""A check of the user's code is evaluated long before its deadline if nothing is active, and never otherwise."""

import os
import subprocess
import sys
import threading
import time

import pytest

from ddp_doctor.model.context import RankContext
from ddp_doctor.ranks import idle_ranks, process
from ddp_doctor.sources import proc
from tests.launch import misbehaving
from tests.launch.conftest import Play
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks

#: In place of the 15 seconds of a run, and of its 60.
STILL_S, DEADLINE_S = 1.5, LIMIT_S
#: Twice as long as what is still may be.
WORKS_S = 3.5


def computes(ctx: RankContext) -> misbehaving.Done:
    """Let one rank compute for a long time without output."""
    until = time.process_time() + WORKS_S * (ctx.rank == 1)
    while time.process_time() < until:
        pass
    return misbehaving.well_behaved(ctx)


def has_it_compiled(ctx: RankContext) -> misbehaving.Done:
    """A process of the rank's own works, and the rank waits for it."""
    if ctx.rank == 1:
        program = f"import time\nwhile time.process_time() < {WORKS_S}: pass"
        subprocess.run([sys.executable, "-S", "-c", program], check=True)
    return misbehaving.well_behaved(ctx)


def downloads(ctx: RankContext) -> misbehaving.Done:
    """Transfer a byte intermittently, which needs very little processor time."""
    if ctx.rank == 1:
        one, other = os.pipe()
        for _ in range(int(WORKS_S / 0.5)):
            os.write(other, b".")
            os.read(one, 1)
            threading.Event().wait(0.5)  # slowness that the product must measure
    return misbehaving.well_behaved(ctx)


@pytest.mark.torches("ranks that misbehave or hang")
def test_inactive_rank_is_reported_long_before_the_deadline(play: Play):
    scenario = play(misbehaving.never_enters, ranks=3, deadline_s=DEADLINE_S, still_s=STILL_S)

    assert (scenario.codes, scenario.culprits) == (["DD610"], [misbehaving.BAD])
    assert " at misbehaving.py:" in scenario.title
    assert STILL_S <= scenario.outcome.recording.trials[0].waited_s < DEADLINE_S


@pytest.mark.parametrize("probe", [computes, has_it_compiled, downloads], ids=lambda probe: probe.__name__)
def test_silently_working_rank_is_awaited(play: Play, probe):
    scenario = play(probe, ranks=2, deadline_s=DEADLINE_S, still_s=STILL_S)

    assert [trial.outcome for trial in scenario.outcome.recording.trials] == ["finished"]
    assert "DD610" not in scenario.codes


def test_rank_that_computes_forever_is_reported_at_the_deadline(play: Play):
    scenario = play(misbehaving.loops_in_python, ranks=2, deadline_s=4.0, still_s=1.0)

    assert (scenario.codes, scenario.culprits) == (["DD610"], [misbehaving.BAD])
    assert scenario.outcome.recording.trials[0].waited_s >= 4.0


def test_process_is_seen_with_its_children_and_its_io():
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in (process.with_children(os.getpid(), 64) or [])
        before = proc.io_bytes(os.getpid())
        os.write(os.open(os.devnull, os.O_WRONLY), bytes(1000))
        assert (proc.io_bytes(os.getpid()) or 0) >= (before or 0) + 1000
    finally:
        child.communicate(b"\n")


def test_exited_process_has_no_values():
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()

    assert proc.io_bytes(child.pid) is None
    assert process.with_children(child.pid, 64) == [child.pid]


@pytest.mark.parametrize(
    ("beside", "is_ready"),
    [
        ("None", False),
        ("threading.Thread(target=spin, daemon=True).start()", True),
        ("[threading.Thread(target=poll, daemon=True).start() for _ in range(8)]", False),
    ],
    ids=["all sleep", "another thread wants a processor", "others poll and find nothing to do"],
)
def test_rank_with_a_sleeping_main_thread_is_ready_by_another_thread(beside: str, is_ready: bool):
    spin = "def spin():\n    while True: pass\ndef poll():\n    while True: time.sleep(0.001)"
    code = f"import sys, threading, time\n{spin}\n{beside}\nprint()\nsys.stdin.read()"
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, "-Suc", code], stdin=pipe, stdout=pipe)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        wait_until(lambda: process.state(child.pid) == "S")

        def stays_ready() -> bool:
            ready = idle_ranks._in_state("R", child.pid)
            return all(ready := ready & idle_ranks._in_state("R", child.pid) for _ in range(20))

        wait_until(lambda: stays_ready() == is_ready)  # while print passes on the lock, no thread is ready
    finally:
        child.kill()
        child.communicate()


def test_computing_main_thread_counts_as_running_while_it_passes_on_the_gil():
    beside = "def poll():\n    while True: time.sleep(0.001)\nthreading.Thread(target=poll, daemon=True).start()"
    code = f"import threading, time\n{beside}\nprint(flush=True)\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-Suc", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        wait_until(lambda: idle_ranks._in_state("R", child.pid) & idle_ranks._in_state("R", child.pid))
    finally:
        child.kill()
        child.communicate()
