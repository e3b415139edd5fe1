"""A ddp-doctor that is killed, interrupted or loses a process at any time ends in time and leaves nothing behind.

The rounds are those of ``python -m tests.lab.attack``, which plays any number of random ones.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.app import recordings
from ddp_doctor.checks import CHECKS
from ddp_doctor.model.choices import ExitCode
from tests.lab.attack import Round, Run
from tests.lab.hosts import WITHOUT_DDP
from tests.waiting import LIMIT_S

#: Serial: a process that lives for a moment must be found and signaled before it exits.
pytestmark = [pytest.mark.ranks, pytest.mark.serial]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Yield a run on two ranks; a failing test's processes must not affect later tests."""
    run = Run(tmp_path, 2, "--level", "quick", *WITHOUT_DDP)
    yield run
    run.kill()


@pytest.mark.smoke
def test_no_process_survives_sigkill_of_the_agent(run: Run):
    assert run.wait_for("rank") is not None
    run.process.kill()
    run.process.wait(LIMIT_S)

    assert [what for what in run.left() if not what.startswith("ddp-doctor-")] == []


@pytest.mark.smoke
def test_run_interrupted_repeatedly_writes_a_partial_report_and_leaves_no_trace(run: Run):
    tracker = run.wait_for("tracker")
    assert tracker is not None
    assert run.wait_for("store") is not None
    os.kill(tracker, signal.SIGSTOP)  # it kept the pipes of who started the doctor open
    for _ in range(5):
        os.killpg(run.process.pid, signal.SIGINT)
    assert run.end(LIMIT_S) is not None
    report, replayed = run.report(), recordings.replay(run.recording_path)

    assert run.left() == []
    assert "Traceback" not in run.said()
    assert report is not None
    assert run.process.returncode == report["exit_code"] == ExitCode.INTERRUPTED.value
    assert [check["id"] for check in report["checks"]] == [check.id for check in CHECKS]
    assert any((check["reason"] or "").startswith("interrupted") for check in report["checks"])
    assert replayed.report.model_dump(mode="json") == report


def test_stopped_forkserver_makes_the_run_unsure_without_a_culprit(run: Run):
    forkserver = run.wait_for("forkserver")
    assert forkserver is not None
    os.kill(forkserver, signal.SIGSTOP)
    assert run.end(LIMIT_S) is not None
    report = run.report()

    assert run.left() == []
    assert report is not None
    assert run.process.returncode == ExitCode.UNSURE.value
    assert "Unsure: a process of ddp-doctor is stopped (state T): the forkserver" in report["summary"]
    assert [finding for finding in report["findings"] if finding["severity"] == "error"] == []


@pytest.mark.parametrize("seed", range(6))
def test_attack_round_meets_all_requirements(seed: int, tmp_path: Path):
    _, wrong = Round(seed).play(tmp_path)
    assert wrong == []
