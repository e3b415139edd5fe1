"""What the watcher does with a stand-still, by what `attach` says of it; the lab has one of real ranks."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_doctor.watch import judging, lookout
from ddp_doctor.watch.lookout import Lookout, WatchOptions

MOVES, STUCK, UNSURE, CUT_SHORT = 0, 1, 3, judging.CUT_SHORT


class Played:
    """A job: for how long a rank has stood still at each second, and what each judgement is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, judgements: list[int], *, kill: bool = False) -> None:
        self.now = self.since = 1_000.0
        self.said: list[str] = []
        self.judged: list[float] = []
        self.sent: list[int] = []
        self.command = SimpleNamespace(pid=1, started_s=self.now, told={}, send=self.sent.append)
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr(lookout, "Progress", lambda: self)
        monkeypatch.setattr(lookout, "Judging", lambda *_: self._judge(judgements.pop(0)))
        evidence = SimpleNamespace(bound=lambda: False, tasks=list)
        options = WatchOptions(stuck_after_s=120.0, kill_on_hang=kill, keep_output=False)
        self.lookout = Lookout(self.command, evidence, options, self.said.append)  # type: ignore[arg-type]

    def _judge(self, code: int) -> Any:
        self.judged.append(self.now - self.since)
        return SimpleNamespace(code=code, has_ended=lambda: True)

    def pids(self) -> tuple[int, ...]:
        return (7,)

    def look(self, _roots: object, _gap_s: float) -> float:
        return self.now - self.since

    def stands_still(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.lookout.look()

    def moves(self) -> None:
        self.since = self.now = self.now + 20.0
        self.lookout.look()


def test_a_job_that_gets_on_is_judged_more_and_more_rarely_and_nothing_is_said(monkeypatch):
    job = Played(monkeypatch, [MOVES] * 4)
    job.stands_still(1_700)

    assert job.judged == pytest.approx([120, 360, 840, 1_320], abs=20)
    assert job.said == []


def test_a_job_that_hangs_is_judged_once_until_it_has_moved(monkeypatch):
    job = Played(monkeypatch, [STUCK, STUCK])
    job.stands_still(900)
    assert job.judged == pytest.approx([120], abs=20)
    assert job.lookout.is_stuck

    job.moves()
    assert (job.said, job.lookout.is_stuck, job.sent) == (["the job moves again"], False, [])
    job.stands_still(200)
    assert len(job.judged) == 2


def test_a_doubt_is_no_verdict_and_the_job_is_judged_again(monkeypatch):
    job = Played(monkeypatch, [UNSURE, STUCK])
    job.stands_still(500)

    assert len(job.judged) == 2
    assert job.lookout.is_stuck


def test_a_node_too_busy_to_look_is_told_at_the_second_time(monkeypatch):
    job = Played(monkeypatch, [CUT_SHORT, CUT_SHORT])
    job.stands_still(500)

    assert [said for said in job.said if "were not enough" in said] == job.said != []


def test_kill_sends_the_command_one_sigterm_and_names_who_still_runs_half_a_minute_later(monkeypatch):
    monkeypatch.setattr("ddp_doctor.ranks.process.with_children", lambda pid, _most: [pid])
    job = Played(monkeypatch, [STUCK], kill=True)
    job.stands_still(140)
    assert job.sent == [signal.SIGTERM]
    assert len(job.said) == 1

    job.stands_still(600)
    assert job.sent == [signal.SIGTERM]
    assert job.said[1].startswith("processes that still run after SIGTERM: 1 (")


def test_a_command_that_does_not_end_after_sigterm_is_judged_in_time_before_sigkill(monkeypatch):
    job = Played(monkeypatch, [MOVES])
    job.stands_still(10)
    job.command.told[signal.SIGTERM] = job.now
    job.stands_still(100)

    assert len(job.judged) == 1
    assert 10 < job.judged[0] < 10 + 15
