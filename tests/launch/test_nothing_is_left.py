"""Killed, interrupted or terminated at any moment, the doctor leaves no process and no segment behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.serial]  # others have segments in /dev/shm too

#: Seconds after the start: while Python starts, torch is imported, torchrun and the trials run.
LONG = pytest.mark.lab
MOMENTS = [
    *(pytest.param(at, marks=LONG) for at in (0.05, 0.4)),
    1.2,
    *(pytest.param(at, marks=LONG) for at in (2.0, 2.8)),
    3.6,
]
INTERRUPTED_LONG = [
    *(
        pytest.param(number, at, marks=LONG)
        for at in (0.05, 0.4, 2.0)
        for number in (signal.SIGINT, signal.SIGTERM)
    ),
    *(pytest.param(*pair, marks=LONG) for pair in ((signal.SIGTERM, 1.2), (signal.SIGINT, 2.8))),
]


class Doctor:
    """A ``ddp-doctor run`` in a process of its own, whose descendants carry a mark."""

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.state = folder / "state"
        self.segments = set(Path("/dev/shm").iterdir())
        env = {
            **os.environ,
            "DDP_DOCTOR_TEST_MARK": self.mark,
            "XDG_STATE_HOME": str(self.state),
            "TMPDIR": str(folder),
        }
        argv = [sys.executable, "-m", "ddp_doctor", "run", "--nproc-per-node", "2"]
        self.process = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_until_it_handles_signals(self) -> None:
        """Until its first process appears; before that, a signal ends it as it ends any Python."""
        deadline = time.monotonic() + 60.0
        while len(self.alive()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def alive(self) -> list[int]:
        """The pids of all processes that carry the mark, from their initial environment."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def end(self) -> None:
        """After a test that failed: its processes and pipes must not trouble the tests that follow."""
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=5)

    def new_segments(self) -> set[Path]:
        return set(Path("/dev/shm").iterdir()) - self.segments

    def assert_all_gone(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self.alive():
            time.sleep(0.05)
        assert self.alive() == []
        assert self.new_segments() == set()


@pytest.fixture
def doctor(tmp_path: Path) -> Iterator[Doctor]:
    doctor = Doctor(tmp_path)
    yield doctor
    doctor.end()


@pytest.mark.parametrize("moment", MOMENTS)
def test_two_seconds_after_sigkill_of_the_agent_nothing_lives(doctor, moment):
    time.sleep(moment)
    doctor.process.kill()
    doctor.process.communicate(timeout=5)

    doctor.assert_all_gone(within_s=2.0)


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, 1.2), (signal.SIGTERM, 2.8), *INTERRUPTED_LONG]
)
def test_an_interrupted_run_reports_in_part_and_leaves_nothing(doctor, number, moment):
    doctor.wait_until_it_handles_signals()
    time.sleep(moment)
    doctor.process.send_signal(number)
    out, err = doctor.process.communicate(timeout=10)

    doctor.assert_all_gone(within_s=0.5)
    assert "Traceback" not in out + err
    if doctor.process.returncode == 0:
        pytest.skip("the run had ended before the signal")
    assert doctor.process.returncode == 130
    assert "Interrupted" in out
    saved = list(doctor.state.glob("ddp-doctor/runs/*/recording.json"))
    assert json.loads(saved[0].read_text())["interrupted"] is True


def test_a_second_ctrl_c_does_not_cut_the_clean_up_short(doctor):
    doctor.wait_until_it_handles_signals()
    time.sleep(1.2)
    for _ in range(5):
        doctor.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    out, err = doctor.process.communicate(timeout=10)

    assert doctor.process.returncode == 130
    assert "Traceback" not in out + err
    doctor.assert_all_gone(within_s=0.5)


@pytest.mark.parametrize(
    "helper", ["ddp-doctor:fork", pytest.param("ddp-doctor:ctl", marks=pytest.mark.lab, id="ctl, long")]
)
def test_a_killed_helper_of_the_doctor_makes_it_unsure_and_blames_nobody(doctor, helper):
    pid = None
    while pid is None and doctor.process.poll() is None:
        time.sleep(0.005)
        names = {pid: Path(f"/proc/{pid}/comm") for pid in doctor.alive()}
        pid = next(
            (pid for pid, comm in names.items() if comm.exists() and comm.read_text().strip() == helper), None
        )
    time.sleep(0.3 if helper == "ddp-doctor:fork" else 0.0)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    out, err = doctor.process.communicate(timeout=60)

    assert "Traceback" not in out + err
    # 0: it was no longer needed; a forkserver killed while it imports torch looks like a bad torch.
    assert doctor.process.returncode in (0, 3) or "torch cannot be imported" in out, out
    assert "link" not in out
    doctor.assert_all_gone(within_s=0.5)
