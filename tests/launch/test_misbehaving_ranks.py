"""Each way a rank can misbehave: only it is reported; a hanging one within the check's deadline plus 3 s."""

from pathlib import Path

import pytest

from ddp_doctor.model.choices import Verdict
from tests.launch import misbehaving
from tests.launch.conftest import Play
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks
torches = pytest.mark.torches("ranks that misbehave or hang")

DEADLINE_S = 2.0
RANKS = [2, pytest.param(4, marks=torches)]

#: probe, its single finding, the start of its title
CASES = [
    (misbehaving.loops_in_python, "DD610", "Rank 1 never entered all_reduce #1"),
    (misbehaving.holds_the_interpreter, "DD610", "Rank 1 never entered all_reduce #1"),
    (misbehaving.never_joins_a_group, "DD610", "Rank 1 never entered new_group #1"),
    (misbehaving.is_stopped, "DD611", "Rank 1 is stopped (state T)"),
    (misbehaving.exits, "DD612", "Rank 1 exited early with code 3"),
    (misbehaving.is_killed, "DD612", "Rank 1 was killed by SIGKILL"),
    (misbehaving.segfaults, "DD612", "Rank 1 was killed by SIGSEGV"),
    (misbehaving.raises, "DD613", "Rank 1 raised ValueError"),
    (misbehaving.calls_another_operation, "DD614", "Rank 1 called broadcast"),
    (misbehaving.calls_another_shape, "DD614", "Rank 1 called all_reduce of shape [16]"),
]

#: The cases with two ranks: one never comes, or their calls differ and no majority shows which call is right.
OF_TWO = (misbehaving.loops_in_python, misbehaving.calls_another_operation, misbehaving.calls_another_shape)
#: The cases in `make test`, next to a rank that never comes in a later test.
SMOKE_OF_TWO, SMOKE_OF_FOUR = (misbehaving.loops_in_python,), (misbehaving.is_killed, misbehaving.is_stopped)
#: Faults that end without waiting for a deadline, however long it is.
ENDS = (misbehaving.exits, misbehaving.is_killed, misbehaving.segfaults, misbehaving.raises)


@pytest.fixture
def one_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp_doctor.engine.node_run.agent.MOST_TRIALS", 1)


@pytest.mark.parametrize(
    ("probe", "code", "words", "ranks"),
    [
        pytest.param(*case, 2, id=f"{case[0].__name__}-2", marks=[pytest.mark.smoke] * (case[0] in SMOKE_OF_TWO))
        for case in CASES
        if case[0] in OF_TWO
    ]
    + [
        pytest.param(
            *case, 4, id=f"{case[0].__name__}-4", marks=[torches, *[pytest.mark.smoke] * (case[0] in SMOKE_OF_FOUR)]
        )
        for case in CASES
    ],
)
def test_only_the_misbehaving_rank_is_reported(play: Play, one_trial, probe, code, words, ranks):
    scenario = play(probe, ranks=ranks, deadline_s=LIMIT_S if probe in ENDS else DEADLINE_S)

    bad = next(rank for rank in scenario.outcome.recording.trials[0].evidence if rank.rank == misbehaving.BAD)
    if code == "DD614" and not bad.flight:  # gloo aborted it because sizes differ, or this torch does not record gloo
        assert (bad.exit_code is not None or bool(bad.stack), len(scenario.codes), scenario.culprits) == (True, 1, [])
        return
    assert scenario.codes == [code], scenario.outcome.report.findings
    assert scenario.culprits == [misbehaving.BAD]
    assert words in scenario.title
    assert ("explain DDJ108" in scenario.outcome.report.findings[0].detail) is (probe is misbehaving.exits)
    assert scenario.outcome.report.verdict is Verdict.UNHEALTHY


@pytest.mark.parametrize(
    ("probe", "title", "detail"),
    [
        (misbehaving.all_crash, "Every rank was killed by SIGSEGV in your code at misbehaving.py:", ""),
        (misbehaving.all_abort, "Every rank was killed by SIGABRT in your code", "explain DDJ109"),
        (misbehaving.all_are_killed, "Every rank was killed by SIGKILL in all_reduce #1 of check scenario", ""),
        (misbehaving.all_exit, "Every rank exited early with code 0 in check scenario", ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_ranks_that_all_exit_on_their_own_are_a_fault_without_a_culprit(play: Play, one_trial, probe, title, detail):
    scenario = play(probe, ranks=2, deadline_s=LIMIT_S)

    assert (scenario.codes, [rank for rank in scenario.culprits if rank is not None]) == (["DD612"], [])
    assert scenario.title.startswith(title)
    assert detail in scenario.outcome.report.findings[0].detail
    assert scenario.outcome.report.verdict is Verdict.UNHEALTHY
    ends = {reading.reason for reading in scenario.outcome.recording.of_check("scenario")}
    assert all(why and why.startswith("its process ") for why in ends)


@pytest.mark.serial
@pytest.mark.timing  # the promise is a number of seconds
def test_hanging_rank_is_reported_within_the_deadline_plus_three_seconds(play: Play):
    scenario = play(misbehaving.never_enters, deadline_s=DEADLINE_S)

    assert (scenario.codes, scenario.culprits) == (["DD610"], [misbehaving.BAD])
    assert scenario.outcome.recording.trials[0].duration_s < DEADLINE_S + 3.0


@pytest.mark.smoke
def test_after_a_bad_rank_the_others_pass_in_a_second_trial_and_keep_their_numbers(play: Play):
    scenario = play(misbehaving.never_enters, deadline_s=DEADLINE_S)

    assert (scenario.codes, scenario.culprits) == (["DD610"], [misbehaving.BAD])
    assert scenario.title.startswith("Rank 1 never entered all_reduce #1: stuck at misbehaving.py:")
    assert scenario.outcome.report.verdict is Verdict.UNHEALTHY
    assert [trial.outcome for trial in scenario.outcome.recording.trials] == ["stuck", "finished"]
    assert scenario.outcome.recording.trials[1].ranks == (0, 2, 3)
    assert "passed in a second trial" in scenario.outcome.report.findings[0].detail


@torches
def test_a_late_rank_is_a_warning_and_the_verdict_degraded(play: Play):
    scenario = play(misbehaving.comes_late, deadline_s=LIMIT_S)

    assert scenario.codes == ["DD619"]
    assert scenario.culprits == [misbehaving.BAD]
    assert scenario.outcome.report.verdict is Verdict.DEGRADED


@torches
def test_check_that_makes_progress_is_slow_but_not_hung(play: Play):
    scenario = play(misbehaving.moves_slowly, deadline_s=1.5)

    assert scenario.codes == ["DD620"]
    assert scenario.culprits == []


@torches
def test_pair_with_two_waiting_ends_is_reported_and_other_ranks_continue(play: Play):
    scenario = play(misbehaving.both_ends_receive, deadline_s=8.0, check_id="p2p")

    assert scenario.codes == ["DD615"]
    culprit = scenario.outcome.report.findings[0].culprits[0]
    assert (culprit.kind, culprit.rank, culprit.peer_rank) == ("pair", 0, 1)
    assert scenario.outcome.recording.trials[1].outcome == "finished"
    assert scenario.outcome.recording.trials[1].ranks == (0, 1, 2, 3)


def test_collective_is_not_repeated_over_a_hanging_pair(play: Play):
    scenario = play(misbehaving.both_ends_receive, deadline_s=8.0)

    assert scenario.codes == ["DD615"]
    assert scenario.outcome.recording.not_run[0].reason == "the link between ranks 0 and 1 hangs"


def test_killed_trial_leaves_no_shared_memory(play: Play, one_trial):
    scenario = play(misbehaving.leaves_shared_memory)

    assert scenario.codes == ["DD610"]
    wait_until(lambda: not list(Path("/dev/shm").glob("nccl-ddp-doctor-test*")))


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.smoke), *RANKS[1:]])
def test_doubled_share_identifies_its_rank(play: Play, one_trial, ranks):
    scenario = play(misbehaving.adds_to_the_sum, ranks=ranks, deadline_s=LIMIT_S)

    assert scenario.codes[0] == "DD601"
    assert "contribution of rank 1 is wrong" in scenario.title
    assert scenario.outcome.report.findings[0].culprits[0].rank == misbehaving.BAD


@torches
def test_healthy_ranks_have_no_finding(play: Play):
    scenario = play(misbehaving.well_behaved)

    assert scenario.codes == []
    assert scenario.outcome.report.verdict is Verdict.HEALTHY


def test_rank_is_reported_even_if_the_import_of_torch_exhausted_the_budget(play: Play):
    scenario = play(misbehaving.never_enters, deadline_s=DEADLINE_S, budget_s=-1.0)

    assert scenario.codes == ["DD610"]
    assert len(scenario.outcome.recording.trials) == 1
