"""The reports and actions of the watcher in a stall, by the results of `attach`. The lab has a stall of real ranks."""

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_doctor.app.outcome import UsageError, blank
from ddp_doctor.engine.plan import Plan
from ddp_doctor.features.jobs.watch import judging, lookout
from ddp_doctor.features.jobs.watch.lookout import Lookout, WatchOptions
from ddp_doctor.model.recording import Options
from tests.recordings import judged

MOVES, STUCK, UNSURE, CUT_SHORT, WAITS, SLOW = 0, 1, 3, judging.CUT_SHORT, judging.WAITS, judging.SLOW


class Played:
    """A job: how long a rank has not moved at each second, and the result of each check.

    ``early``: the result of silent samples; ``node``: the number of the node in a step of several nodes.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        judgments: list[int],
        *,
        early: int = MOVES,
        kill: bool = False,
        tell_slow: bool = False,
        node: int | None = None,
    ) -> None:
        self.now = self.since = 1_000.0
        self.ranks: tuple[int, ...] = (7, 8)
        self.said: list[str] = []
        self.news: list[str] = []
        self.judged: list[float] = []
        self.looked: list[float] = []
        self.asked: list[dict[str, object]] = []
        self.commands: list[list[str]] = [["python", "train.py"]]
        self.sent: list[int] = []
        self.command = SimpleNamespace(pid=1, started_s=self.now, told={}, send=self.sent.append)
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("random.uniform", lambda _low, high: high)
        monkeypatch.setattr(lookout, "Progress", lambda: self)
        pace = SimpleNamespace(look=lambda *_: None, news=lambda: self.news.pop(0) if self.news else "", close=list)
        monkeypatch.setattr(lookout, "Slowdown", lambda *_, **__: pace)
        monkeypatch.setattr("ddp_doctor.sources.proc.pids", lambda: range(len(self.commands)))
        monkeypatch.setattr("ddp_doctor.sources.proc.command", lambda number: self.commands[number])
        monkeypatch.setattr(lookout, "judge_what_runs", lambda *_, **how: self.asked.append(how))
        for name, number in (("SLURM_JOB_ID", "4711"), ("SLURM_STEP_ID", "0")):
            monkeypatch.setenv(name, number)

        def judge(what: Callable[[], None], _seconds: float, stderr: int = 2) -> Any:
            what()
            if stderr != 2:
                self.looked.append(self.now - self.since)
                os.write(stderr, b"rank 1 stands at train.py:9\n")
            else:
                self.judged.append(self.now - self.since)
            code = early if stderr != 2 else judgments.pop(0)
            return SimpleNamespace(code=code, has_ended=lambda: True, stop=lambda: None)

        monkeypatch.setattr(lookout, "Judging", judge)
        evidence = SimpleNamespace(bound=lambda: False, tasks=list)
        options = WatchOptions(stuck_after_s=120.0, kill_on_hang=kill, keep_output=False, tell_slow=tell_slow)
        self.lookout = Lookout(self.command, evidence, options, self.said.append, node)  # type: ignore[arg-type]

    def pids(self) -> tuple[int, ...]:
        return self.ranks

    def look(self, _roots: object, _gap_s: float) -> float:
        return self.now - self.since

    def stands_still(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.lookout.look()

    def moves(self) -> None:
        self.since = self.now = self.now + 20.0
        self.lookout.look()


def test_job_that_makes_progress_is_checked_less_often_and_silently(monkeypatch):
    job = Played(monkeypatch, [MOVES] * 4)
    job.stands_still(1_700)

    assert job.judged == pytest.approx([120, 360, 840, 1_320], abs=20)
    assert job.said == []


def test_ranks_that_wait_for_a_working_rank_are_checked_again_soon_and_not_killed(monkeypatch):
    job = Played(monkeypatch, [WAITS, SLOW, WAITS], kill=True)
    job.stands_still(900)

    assert job.judged == pytest.approx([120, 240, 480], abs=20)
    assert [asked["only_if_sure"] for asked in job.asked if "pictures" in asked] == [False, False, True]
    assert job.lookout.has_told
    assert (job.sent, job.lookout.is_stuck) == ([], False)
    job.moves()
    assert (job.said, job.lookout.has_told) == (["the job makes progress again"], False)


@pytest.mark.parametrize("asked", [True, False])
def test_slowdown_is_reported_during_the_job_only_on_request(monkeypatch, asked):
    job = Played(monkeypatch, [], tell_slow=asked)
    job.news = ["", "became slower at 02:14"]
    job.stands_still(20)

    assert job.said == (["the job became slower at 02:14"] if asked else [])


def test_hanging_job_is_checked_once_until_it_makes_progress(monkeypatch):
    job = Played(monkeypatch, [STUCK, STUCK])
    job.stands_still(900)
    assert job.judged == pytest.approx([120], abs=20)
    assert job.lookout.is_stuck

    job.moves()
    assert (job.said, job.lookout.is_stuck, job.sent) == (["the job makes progress again"], False, [])
    job.stands_still(200)
    assert len(job.judged) == 2


@pytest.mark.parametrize("left", [(), (7,)])
def test_exit_after_a_hang_is_not_reported_as_progress(monkeypatch, left):
    job = Played(monkeypatch, [STUCK])
    job.stands_still(200)
    job.ranks = left
    job.moves()

    assert (job.said, job.lookout.is_stuck) == ([], True)


def test_job_is_checked_again_after_an_unsure_result(monkeypatch):
    job = Played(monkeypatch, [UNSURE, STUCK])
    job.stands_still(500)

    assert len(job.judged) == 2
    assert job.lookout.is_stuck


def test_job_is_checked_again_if_a_rank_exited_during_the_check(monkeypatch):
    job = Played(monkeypatch, [judging.ENDED, STUCK])
    job.stands_still(300)

    assert job.judged == pytest.approx([120, 240], abs=20)


def test_node_that_is_too_busy_to_be_checked_is_reported(monkeypatch):
    job = Played(monkeypatch, [CUT_SHORT, CUT_SHORT])
    job.stands_still(500)

    assert [said for said in job.said if "were not enough" in said] == job.said != []


def test_kill_on_hang_sends_one_sigterm_and_reports_remaining_processes(monkeypatch):
    monkeypatch.setattr("ddp_doctor.ranks.process.with_children", lambda pid, _most: [pid])
    job = Played(monkeypatch, [STUCK], kill=True)
    job.stands_still(140)
    assert job.sent == [signal.SIGTERM]
    assert len(job.said) == 1

    job.stands_still(600)
    assert job.sent == [signal.SIGTERM]
    assert job.said[1].startswith("processes still running after SIGTERM: 1 (")


def test_command_that_keeps_running_after_sigterm_is_checked_before_sigkill(monkeypatch):
    job = Played(monkeypatch, [UNSURE])
    job.stands_still(10)
    job.command.told[signal.SIGTERM] = job.now
    job.stands_still(100)

    assert len(job.judged) == 1
    assert 10 < job.judged[0] < 10 + 15
    assert job.said == []


@pytest.mark.parametrize(
    ("early", "seconds", "moved_s", "is_told"),
    [
        pytest.param(STUCK, 61, 5, True, id="the job's watchdog ended it"),
        pytest.param(STUCK, 61, 300, False, id="it made progress after the early check"),
        pytest.param(WAITS, 61, 5, True, id="ranks waited for a rank that was not known to hang"),
        pytest.param(UNSURE, 61, 5, False, id="the blocking rank was unknown"),
        pytest.param(STUCK, 200, 5, False, id="a later check reported it"),
    ],
)
def test_early_result_is_reported_only_if_the_job_ends_in_that_hang(
    monkeypatch, capfd, early, seconds, moved_s, is_told
):
    job = Played(monkeypatch, [STUCK], early=early)
    job.stands_still(seconds)
    assert job.looked == pytest.approx([30], abs=6)
    assert job.said == []

    job.since = job.now
    job.now += moved_s
    job.lookout.close()
    job.lookout.tell_early_look(job.now)
    assert capfd.readouterr().err == ("rank 1 stands at train.py:9\n" if is_told else "")


def test_watcher_of_the_first_node_also_reports_unsure_results(monkeypatch):
    job = Played(monkeypatch, [STUCK], node=0)
    job.stands_still(200)

    assert job.judged == pytest.approx([120], abs=20)
    assert job.asked[-1].items() >= {"node": 0, "only_if_sure": False}.items()


@pytest.mark.parametrize("command", [["python", "train.py"], ["ddp-doctor", "attach", "--slurm-job", "4711.1"]])
def test_watcher_of_another_node_checks_its_node_if_no_agent_of_the_first_arrives(monkeypatch, command):
    job = Played(monkeypatch, [UNSURE, STUCK], node=3)
    job.commands.append(command)
    job.stands_still(450)

    assert job.judged == pytest.approx([180, 420], abs=20)
    assert job.asked[-1].items() >= {"node": 3, "only_if_sure": True}.items()
    job.moves()
    assert job.said == ["the job makes progress again"]


def test_watcher_of_another_node_is_silent_if_the_first_one_checked(monkeypatch):
    job = Played(monkeypatch, [], node=3)
    job.stands_still(115)
    job.commands.append(["python", "-m", "ddp_doctor", "attach", "--slurm-job", "4711.0"])
    job.stands_still(6)
    job.commands.pop()
    job.stands_still(900)
    job.moves()

    assert (job.judged, job.said) == ([], [])


#: Recordings of ranks that wait for a rank that is not known to hang, and the report about it.
SLOW_JOBS = {
    "attach/a-data-loader-whose-worker-is-at-work": (
        "Rank 3 (pid 103) waits for data at train.py:40 (its data loader worker is at data.py:12)"
    ),
    "attach/a-checkpoint-that-grows": "Rank 0 (pid 100) saves or loads a checkpoint at train.py:50",
}


@pytest.mark.parametrize("situation", SLOW_JOBS)
def test_ranks_that_stay_at_the_same_line_are_reported_once_as_slow(situation, monkeypatch):
    expected = SLOW_JOBS[situation]
    monkeypatch.setattr("ddp_doctor.features.jobs.attach.use_case.attach", lambda *_, **__: judged(situation))
    monkeypatch.setattr("ddp_doctor.app.folders.save_recording", lambda *_: "FILE")
    said: list[str] = []
    file = os.memfd_create("seen")

    def look(now_s: float, still_s: float) -> int:
        pictures = judging.Pictures(file, 120.0, now_s, still_s)
        return judging.judge_what_runs([os.getpid()], {}, said.append, "why", pictures=pictures)

    codes = [look(at, still) for at, still in ((1_120, 120), (1_240, 240), (1_480, 480), (1_600, 600))]
    assert codes == [WAITS, SLOW, WAITS, WAITS]
    assert [text.partition(f" for 120 s. {expected}")[1] != "" for text in said] == [True]
    assert "; slow, but not known to hang (`ddp-doctor replay FILE`" in said[0]
    # It has moved since then, and is in the same place again.
    assert look(2_000, 130) == WAITS
    os.close(file)


def test_progress_between_two_checks_prevents_a_report(monkeypatch):
    monkeypatch.setattr(
        "ddp_doctor.features.jobs.attach.use_case.attach", lambda *_, **__: judged(next(iter(SLOW_JOBS)))
    )
    said: list[str] = []
    file = os.memfd_create("seen")
    for now_s, still_s in ((1_120.0, 120.0), (1_250.0, 120.0), (1_380.0, 120.0)):
        pictures = judging.Pictures(file, 120.0, now_s, still_s)
        code = judging.judge_what_runs([os.getpid()], {}, said.append, "why", pictures=pictures)
        assert code == WAITS
    os.close(file)
    assert said == []


CANNOT_TELL = "Cannot tell. (`ddp-doctor replay FILE` shows more)"


@pytest.fixture
def looked(monkeypatch, tmp_path) -> list[str]:
    """SLURM starts no agents, and `attach` does not find out what the ranks of this node wait for."""

    def no_step(*_: object) -> None:
        raise UsageError("srun is not on PATH")

    recording = blank(Options(command="attach"), Plan(()), {})
    outcome = SimpleNamespace(report=SimpleNamespace(exit_code=UNSURE, summary="Cannot tell."), recording=recording)
    monkeypatch.setattr("ddp_doctor.features.jobs.attach.nodes.attach_to_step", no_step)
    monkeypatch.setattr("ddp_doctor.features.jobs.attach.use_case.attach", lambda *_, **__: outcome)
    monkeypatch.setattr("ddp_doctor.app.folders.save_recording", lambda *_: "FILE")
    return []


@pytest.mark.parametrize(
    ("node", "said"),
    [(None, f"why. {CANNOT_TELL}"), (0, f"why, seen only on this node (srun is not on PATH). {CANNOT_TELL}"), (1, "")],
)
def test_only_the_first_node_reports_if_slurm_starts_no_agents(looked, node, said):
    judging.judge_what_runs([os.getpid()], {}, looked.append, "why", node=node)

    assert looked == [said] * bool(said)


def test_ranks_that_exit_during_the_check_are_not_reported(looked, monkeypatch):
    ended = iter([False, True])
    monkeypatch.setattr("ddp_doctor.ranks.process.has_ended", lambda _pid: next(ended))

    assert judging.judge_what_runs([7], {}, looked.append, "why") == judging.ENDED
    assert looked == []
