"""torchrun does not outlive what the doctor wanted of it, whenever a signal comes. The torchrun is real."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_doctor.model.trial import RankEvidence
from ddp_doctor.ranks.torchrun import launch
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.ranks

#: Started as a separate program, so that its signals and children are its own.
PROGRAM = """
import os, random, signal, threading, time
from pathlib import Path
import psutil

from ddp_doctor.ranks.torchrun import launch
from ddp_doctor.starters.interruption import Interrupted, interruptible
from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.model.recording import Options
from ddp_doctor.starters.request import RunRequest

class Spec:
    local_rank = 0
    def path(self, kind):
        {at_spec}
        return Path(kind)

    def model_copy(self, update):
        return self

    def to_json(self):
        return "{}"

def launches(number):
    left = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    assert not left, (number, left)

interrupted = 0
for number in range({rounds}):
    try:
        request = RunRequest(Options(), dict(os.environ), progress=print)
        with interruptible() as interruption, Session(request) as session:
            if {storm}:
                after = random.Random(number).uniform(0.0, 0.03)
                threading.Timer(after, os.kill, (os.getpid(), signal.SIGTERM)).start()
            try:
                interruption.arm()
                with launch.Launch(session.run_folder, [Spec()], dict(os.environ)):
                    time.sleep(0.03)
            except Interrupted:
                interrupted += 1
                {at_once}
            interruption.disarm()
    except Interrupted:
        interrupted += 1
    launches(number)
    time.sleep(0.03)
print(interrupted)
"""


def interrupted(**parts: str) -> int:
    program = PROGRAM
    usual = {"at_spec": "pass", "rounds": "1", "storm": "False", "at_once": "pass"}
    for name, text in {**usual, **parts}.items():
        program = program.replace(f"{{{name}}}", text)
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


def test_signal_before_the_launch_starts_leaves_no_torchrun():
    assert interrupted(at_spec="signal.raise_signal(signal.SIGTERM)", at_once="launches(-1)") == 1


def test_signals_at_any_time_of_the_launch_leave_no_torchrun():
    assert interrupted(storm="True", rounds="60") > 20


def test_torchrun_rank_imports_only_its_own_check():
    program = """
import sys
from ddp_doctor.ranks.torchrun import worker
worker._bare("ddp_doctor.checks")
import ddp_doctor.checks.cluster.torchrun

import pytest
print(sorted(name for name in sys.modules if name.startswith("ddp_doctor.checks.")))
"""
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True)

    assert "'ddp_doctor.checks.cluster.torchrun'" in done.stdout
    assert "gpus" not in done.stdout


#: torch 2.13 with two ranks after the second was killed; only the summary may mention the first.
TOLD = """W1123 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 16745 closing signal SIGTERM
E1123 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 16747) of
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 16745)
"""


def test_ranks_get_only_the_signals_that_torchrun_reports(tmp_path):
    pids = (16745, 16747, 16749)
    started: Any = launch.Launch(tmp_path, (), {})
    started.workers = [SimpleNamespace(pid=pid) for pid in pids]
    (tmp_path / "torchrun.out").write_text(TOLD)
    ended = [RankEvidence(rank=n, pid=pid, exit_code=0, exited_at=2.0) for n, pid in enumerate(pids)]
    elsewhere = RankEvidence(rank=3, node=1, pid=99, exit_code=0, exited_at=2.0)
    alive = RankEvidence(rank=4, pid=16747)

    told = started.with_exit_codes((*ended, elsewhere, alive))

    assert [rank.exit_code for rank in told] == [-15, -9, 0, 0, None]


def test_rank_that_is_killed_before_its_first_line_ends_first(tmp_path):
    specs: Any = [SimpleNamespace(rank=rank, local_rank=rank) for rank in (0, 1)]
    started: Any = launch.Launch(tmp_path, (), {})
    started._specs = specs
    started.workers = [SimpleNamespace(pid=16745), SimpleNamespace(pid=None)]
    (tmp_path / "torchrun.out").write_text(TOLD)
    ended = [
        RankEvidence(rank=0, pid=16745, exit_code=0, exited_at=2.0),
        RankEvidence(rank=1, exit_code=1, exited_at=3.0),
    ]

    told = started.with_exit_codes(ended)

    assert [(rank.pid, rank.exit_code, rank.exited_at) for rank in told] == [(16745, -15, 2.0), (16747, -9, 1.9)]


def test_sigint_during_the_import_of_numpy_is_an_end_from_outside(tmp_path):
    for words, is_lost in (("cannot load module more than once per process", True), ("No module named 'x'", False)):
        started = launch.Launch(tmp_path, [], {})
        started._argv = [sys.executable, "-c", f"raise ImportError({words!r})"]
        with started:
            started.notes(LIMIT_S)
            assert (started.lost() is not None) is is_lost
