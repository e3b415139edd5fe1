"""torchrun does not outlive what the doctor wanted of it, whenever a signal comes. The torchrun is real."""

import subprocess
import sys

import pytest

#: Started as a program of its own, so that its signals and children are its own.
PROGRAM = """
import os, random, signal, threading, time
from pathlib import Path
import psutil

from ddp_doctor.ranks.torchrun import launch
from ddp_doctor.starters.interruption import Interrupted, interruptible
from ddp_doctor.engine.node_run.session import Session
from ddp_doctor.model.recording import Options
from ddp_doctor.starters.request import RunRequest

class Spec:
    local_rank = 0
    def path(self, kind):
        {at_spec}
        return Path(kind)

def launches(number):
    left = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    assert not left, (number, left)

launch.replace = lambda spec, **_: type("Json", (), {"to_json": lambda self: "{}"})()
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
    done = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


def test_a_signal_before_the_launch_is_entered_leaves_no_torchrun():
    assert interrupted(at_spec="signal.raise_signal(signal.SIGTERM)", at_once="launches(-1)") == 1


@pytest.mark.lab  # long
def test_signals_at_any_moment_of_the_launch_leave_no_torchrun():
    assert interrupted(storm="True", rounds="60") > 20


def test_a_rank_of_torchrun_imports_no_check_but_its_own():
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
