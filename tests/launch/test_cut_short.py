"""A run that is interrupted or loses one of its own processes reports where the ranks were and blames no rank."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.collect import collect
from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.engine.node_run.partial_recording import note_interruption, where_ranks_stood
from ddp_doctor.engine.verdict import check_results
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import CheckStatus, ExitCode, Status, Verdict, Where
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.trial import RankEvidence, Step, TrialRecord
from ddp_doctor.ranks import helper, process
from ddp_doctor.ranks.helper import Helper
from ddp_doctor.ranks.node_ranks import NodeRanks
from ddp_doctor.ranks.trial import Trial
from ddp_doctor.starters.interruption import Interrupted
from tests.lab.processes import to_its_end
from tests.launch import misbehaving
from tests.launch.conftest import Play
from tests.waiting import LIMIT_S, wait_forever

pytestmark = pytest.mark.ranks

PAIR = World(nproc_per_node=2, world_size=2)


def interrupts_where_ranks_stand(trial: Trial, now: float) -> None:
    """Replace the deadlines: interrupt when rank 0 waits and rank 1 sleeps."""
    waits, sleeps = trial.ranks
    pid = sleeps.worker.pid
    if waits.open_step is not None and misbehaving.asleep(pid).exists() and process.state(pid or 0) == "S":
        raise Interrupted


def test_interrupted_check_reports_the_position_of_its_ranks_live_and_replayed(
    play: Play, session: Session, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Trial, "_overdue", interrupts_where_ranks_stand)
    with pytest.raises(Interrupted):
        play(misbehaving.says_that_it_never_enters, ranks=2, deadline_s=LIMIT_S)
    note_interruption(session.partial, [check for check in CHECKS if check.id == "p2p"], ())
    recording = session.partial.added_to(Recording(world=PAIR, interrupted=True))

    report = app.judge(recording).report
    check = next(check for check in report.checks if check.id == "scenario")

    assert check.status is CheckStatus.SKIPPED
    assert check.reason is not None
    assert check.reason.startswith("interrupted after ")
    assert "; rank 1 was in misbehaving.py:" in check.reason
    assert check.reason.endswith(", and rank 0 waited for it")
    assert "rank 1 was in misbehaving.py" in report.summary
    assert {check.id: check.reason for check in report.checks}["p2p"] == "interrupted before it began"
    assert (report.exit_code, report.findings) == (ExitCode.INTERRUPTED.value, ())
    assert app.judge(Recording.model_validate_json(recording.model_dump_json())).report == report


def test_trial_that_loses_a_process_of_ddp_doctor_reports_it_and_no_rank(play: Play, monkeypatch: pytest.MonkeyPatch):
    looks = itertools.count()

    def lost(_: NodeRanks) -> str | None:
        return "a process of ddp-doctor is stopped" if next(looks) > 10 else None

    monkeypatch.setattr(NodeRanks, "lost_helper", lost)
    scenario = play(misbehaving.never_enters, ranks=2, deadline_s=LIMIT_S)
    report = scenario.outcome.report

    assert (report.verdict, scenario.codes) == (Verdict.UNSURE, [])
    assert report.summary == "Unsure: a process of ddp-doctor is stopped."
    assert [trial.outcome for trial in scenario.outcome.recording.trials] == ["interrupted"]


def test_rank_that_finished_before_the_interruption_does_not_pass_the_check():
    cut = Reading(check="scenario", status=Status.SKIPPED, rank=1, reason="interrupted after 6 s; rank 1 stood")
    through = Reading(check="scenario", status=Status.COLLECTED, rank=0, fact={})
    recording = Recording(world=PAIR, interrupted=True, readings=(through, cut))

    (result,) = (result for result in check_results(recording, (), ()))

    assert (result.status, result.reason) == (CheckStatus.SKIPPED, cut.reason)


def _rank(rank: int, *stack: str, seq: int = 1, **more: Any) -> RankEvidence:
    steps = tuple(Step(check="p2p", name="send_recv", seq=number, where="p2p.py:9") for number in range(1, seq + 1))
    return RankEvidence(rank=rank, began=True, check="p2p", steps=steps, stack=stack, **more)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((_rank(0), _rank(1)), "ranks 0, 1 were in p2p.py:9"),
        ((_rank(0), _rank(1, exited_at=1.0, exit_code=-9)), "rank 1 had ended, and rank 0 waited for it"),
        ((_rank(0), _rank(1, state="T")), "rank 1 was stopped, and rank 0 waited for it"),
        ((RankEvidence(rank=0), RankEvidence(rank=1)), "ranks 0, 1 had not begun"),
        ((_rank(0, done=True), _rank(1, done=True)), "the ranks had finished"),
    ],
    ids=("all in one place", "one that died", "one that is stopped", "none that began", "all done"),
)
def test_position_of_ranks_is_described(ranks: tuple[RankEvidence, ...], words: str):
    trial = TrialRecord(trial="t0", ranks=(0, 1), checks=("p2p",), outcome="interrupted", evidence=ranks)

    assert where_ranks_stood(trial) == words


def test_interruption_keeps_finished_readings_and_times_the_others():
    class Seen(Fact):
        KIND = "seen/1"

    def answers(_: object) -> Fact:
        return Seen()

    def hangs(_: object) -> Fact:
        wait_forever()

    def progress(check: str) -> None:
        if check == "hangs":
            raise Interrupted

    class Context:
        node = 0

    kept: list[Reading] = []
    checks = [Check(probe.__name__, "A probe", Where.NODE, probe, ()) for probe in (answers, hangs)]
    with pytest.raises(Interrupted):
        collect(checks, lambda _: Context(), progress, kept)  # type: ignore[arg-type, return-value]  # stand-ins

    assert [reading.status for reading in kept] == [Status.COLLECTED, Status.SKIPPED]
    assert kept[1].reason is not None
    assert kept[1].reason.startswith("interrupted after ")


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(("sleep", "infinity")) as started:
        yield started
        started.kill()


def test_a_helper_is_lost_when_it_stays_stopped_or_dies_and_not_while_it_is_only_paused(
    sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
):
    now = 100.0
    monkeypatch.setattr("ddp_doctor.ranks.helper.time", SimpleNamespace(monotonic=lambda: now))
    mine = Helper("the sleeper", sleeper.pid)
    assert mine.lost() is None

    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert mine.lost() is None
    now += 60.0  # the agent was stopped with it
    assert mine.lost() is None
    sleeper.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)
    assert mine.lost() is None
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    said = []
    for _ in range(4):
        said.append(mine.lost())
        now += 1.0
    stopped = f"a process of ddp-doctor is stopped (state T): the sleeper, pid {sleeper.pid}"
    assert said == [None, None, stopped, stopped]

    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert helper.was_killed(sleeper.pid)
    gone = mine.lost()
    assert gone is not None
    assert "killed from outside" in gone


#: Starts one forkserver after the other, whose torch runs the given line; then a stopped one forks.
_SERVERS = """
import os, signal, sys
from pathlib import Path
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.helper import HelperLost
from tests.waiting import LIMIT_S

for number, line in enumerate(sys.argv[2:]):
    folder = Path(sys.argv[1]) / str(number)
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text(line)
    server = ForkServer(folder, {"PYTHONPATH": str(folder)})
    server.start()
    try:
        error = server.wait_ready(LIMIT_S).error
        print("error", error.strip().splitlines()[-1])
    except HelperLost as lost:
        error = ""
        print("lost", lost)
    if error and server.is_alive():
        os.kill(server.pid, signal.SIGSTOP)
        try:
            server.fork(print, "never")
        except HelperLost as lost:
            print("lost", lost)
    server.stop()
"""


def test_only_a_stopped_or_killed_forkserver_is_lost(tmp_path: Path):
    lines = (
        "import os; os.kill(os.getpid(), 19)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getpid(), 11)",
        "raise ImportError('no libcudart')",
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = to_its_end((sys.executable, "-c", _SERVERS, tmp_path, *lines), env, check=True)

    stopped, killed, crashed, raised, cannot_fork = done.stdout.splitlines()
    assert stopped.startswith("lost a process of ddp-doctor is stopped (state T): the forkserver")
    assert killed.startswith("lost a process of ddp-doctor is gone: killed from outside")
    assert crashed.startswith("error")
    assert raised == "error ImportError: no libcudart"
    assert cannot_fork.startswith("lost a process of ddp-doctor is stopped")
    assert done.stderr == ""


def test_child_stopped_before_its_program_starts_does_not_outlive_ddp_doctor():
    command = """
import os, signal, sys
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
from ddp_doctor.ranks import process
from tests.waiting import wait_until
wait_until(lambda: process.state(process.with_children(os.getpid(), 9)[1]) == "T")
child = process.with_children(os.getpid(), 9)[1]
process.kill_stopped_children()
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run((sys.executable, "-c", command), capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert int(done.stdout) == signal.SIGKILL


def test_child_with_a_pending_stop_signal_does_not_outlive_ddp_doctor(tmp_path: Path):
    """posix_spawn suspends its caller until the new process, which waits for a writer of the FIFO, starts a program."""
    command = """
import os, signal, sys
fifo = sys.argv[1]
os.mkfifo(fifo)
if os.fork() == 0:
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)])
    os._exit(0)
from ddp_doctor.ranks import process
from tests.waiting import wait_until
wait_until(lambda: len(process.with_children(os.getpid(), 9)) == 3)
child = process.with_children(os.getpid(), 9)[1]
wait_until(lambda: process.state(child) == "D")
os.kill(child, signal.SIGSTOP)
process.kill_stopped_children()
print(os.waitpid(child, 0)[1])
os.close(os.open(fifo, os.O_WRONLY))
"""
    argv = (sys.executable, "-c", command, tmp_path / "fifo")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert int(done.stdout) == signal.SIGKILL
