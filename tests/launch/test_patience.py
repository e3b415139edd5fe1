"""The time that a process had no processor counts toward no limit, so a busy machine does not change results."""

from pathlib import Path

import pytest

from ddp_doctor.knowledge.deadlines import KILL_S, MOST_QUEUED_S
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks import process
from ddp_doctor.ranks.patience import Patience
from ddp_doctor.ranks.rank_state import RankState
from ddp_doctor.ranks.trial import Trial
from ddp_doctor.sources import proc
from tests.launch.rank_states import rank_state


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the kernel's counts for each main thread: seconds that it ran, and that it had no processor."""
    counted = [0.0, 0.0]
    monkeypatch.setattr(proc, "thread_ids", lambda pid: [pid])
    monkeypatch.setattr(proc, "run_and_queued_s", lambda _pid, _thread=None: tuple(counted))
    return counted


@pytest.mark.parametrize(
    ("waited_s", "queued_s", "is_over"),
    [
        (9.0, -99.0, False),
        (9.0, 0.0, False),
        (11.0, 0.0, True),
        (11.0, 2.0, False),
        (39.0, 38.0, False),
        (41.0, 40.0, True),
    ],
)
def test_patience_ends_after_the_limit_and_the_time_in_the_queue(monkeypatch, spent, waited_s, queued_s, is_over):
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    patience = Patience(10.0, [7, None])
    spent[1] = queued_s
    monkeypatch.setattr("time.monotonic", lambda: 100.0 + waited_s)

    assert patience.is_over() is is_over


def rank_in_check(folder: Path) -> RankState:
    rank = rank_state(folder, TrialRecord(trial="t1", ranks=(0,), checks=("c",)), 7, 100.0, began=True)
    rank._take({"event": "check", "check": "c", "t": 100.0})
    return rank


@pytest.mark.parametrize(
    ("allowed_s", "ran_s", "queued_s", "deadline", "granted"),
    [
        (4.0, 3.5, 0.5, 104.5, 0.875),
        (4.0, 0.1, 8.0, 112.0, 0.012),
        (4.0, 1.0, 30.0, 116.0, 0.032),
        (4.0, 0.1, 0.1, 104.1, None),
        (60.0, 10.0, 40.0, 190.0, 0.2),
    ],
)
def test_deadline_of_a_check_moves_by_the_time_in_the_queue(
    tmp_path: Path, spent, allowed_s, ran_s, queued_s, deadline, granted
):
    spent[:] = 50.0, 60.0  # before the check
    rank = rank_in_check(tmp_path)
    spent[:] = 50.0 + ran_s, 60.0 + queued_s
    trial = Trial(rank.spec.trial, [rank], {"c": allowed_s}, lambda _: None, 15.0)
    trial._queued_s = trial._longest_queue_s()

    assert trial._deadline("c", [rank]) == pytest.approx(deadline)
    assert rank.cpu_granted == granted


@pytest.mark.parametrize(("has_ended", "echoes_are_in"), [(False, True), (True, False)])
def test_consequences_are_incomplete_until_exited_ranks_have_their_code(
    tmp_path: Path, monkeypatch, spent, has_ended, echoes_are_in
):
    rank = rank_in_check(tmp_path)
    entered = {"event": "enter", "check": "c", "seq": 1, "name": "all_reduce", "t": 101.0}
    rank._take({**entered, "deadline_s": None, "queued_s": 0.0})
    monkeypatch.setattr(process, "has_ended", lambda _pid: has_ended)
    trial = Trial(rank.spec.trial, [rank], {"c": 4.0}, lambda _: None, 15.0)

    assert trial._echoes_are_in(Patience(-1.0, []), Patience(60.0, [])) is echoes_are_in


def test_limit_of_a_trial_moves_by_the_time_in_the_queue(tmp_path: Path, monkeypatch, spent):
    rank = rank_in_check(tmp_path)
    record = rank.spec.trial.model_copy(update={"limit_s": 6.0})
    monkeypatch.setattr(proc, "queued_s", lambda _pid: spent[1])
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    trial = Trial(record, [rank], {}, lambda _: None, 15.0)
    monkeypatch.setattr("time.monotonic", lambda: 110.0)
    assert trial._overdue(110.0) == "stuck"

    spent[1] += 5.0

    assert trial._overdue(110.0) is None


def test_limit_moves_while_the_forkserver_has_no_processor(tmp_path: Path, monkeypatch):
    queued_s = {8: 0.0}
    monkeypatch.setattr(proc, "thread_ids", lambda pid: [pid])
    monkeypatch.setattr(proc, "run_and_queued_s", lambda pid, _thread=None: (0.0, queued_s.get(pid, 0.0)))
    rank = rank_in_check(tmp_path)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    trial = Trial(rank.spec.trial, [rank], {"c": 4.0}, lambda _: None, 15.0, helper_pids=[8])
    patience = trial._patience(10.0)
    monkeypatch.setattr("time.monotonic", lambda: 111.0)
    assert patience.is_over()

    queued_s[8] = 2.0

    assert not patience.is_over()


@pytest.mark.parametrize(
    ("state", "threads", "longest_s"),
    [("R", 4, MOST_QUEUED_S), ("Z", 2, MOST_QUEUED_S), ("Z", 1, KILL_S), ("D", 4, KILL_S)],
)
def test_killed_rank_is_awaited_longer_while_it_only_needs_a_processor(
    tmp_path: Path, monkeypatch, spent, state, threads, longest_s
):
    rank = rank_in_check(tmp_path)
    monkeypatch.setattr(process, "state", lambda _pid: state)
    monkeypatch.setattr(proc, "thread_ids", lambda _pid: range(threads))
    trial = Trial(rank.spec.trial, [rank], {"c": 4.0}, lambda _: None, 15.0)

    assert trial._longest_death_s() == longest_s
