"""The judge, on evidence written by hand: what no single machine can be made to show at will."""

from typing import Literal

import pytest

from ddp_doctor.launch.hang import judge
from ddp_doctor.model.trial import FlightEntry, Raised, RankEvidence, Step, TrialRecord


def step(seq: int = 1, *, left: bool = False, check: str = "allreduce", peers=(), detail="float32 [8]"):
    return Step(
        check=check,
        name="send_recv" if peers else "all_reduce",
        seq=seq,
        detail=detail,
        peers=tuple(peers),
        entered_at=float(seq),
        left_at=seq + 0.1 if left else None,
        where="train.py:88",
    )


def rank(number: int, *steps: Step, **fields) -> RankEvidence:
    return RankEvidence(rank=number, began=True, state="S", steps=steps, **fields)


def trial(*evidence: RankEvidence, outcome: Literal["stuck", "broken", "slow"] = "stuck") -> TrialRecord:
    return TrialRecord(
        trial="t0",
        ranks=tuple(one.rank for one in evidence),
        checks=("process_group", "allreduce", "p2p"),
        outcome=outcome,
        judged_check="allreduce",
        evidence=evidence,
    )


def flight(op: str = "all_reduce", *sizes: int, seq: int = 5) -> FlightEntry:
    return FlightEntry(seq=seq, op=op, sizes=(tuple(sizes),), dtypes=("Float",))


WAITING = step(3)
CLOSED = Raised(type="RuntimeError", message="Connection closed by peer [::1]:1", blames_peer=True)


def test_the_rank_outside_the_open_collective_is_the_suspect():
    found = judge(trial(rank(0, WAITING), rank(1, step(2, left=True)), rank(2, WAITING)))
    assert (found.kind, found.suspects, found.waiting) == ("never-entered", (1,), (0, 2))


def test_several_absent_ranks_are_all_named():
    found = judge(trial(*(rank(n, WAITING) if n % 2 else rank(n, step(2, left=True)) for n in range(6))))
    assert (found.kind, found.suspects) == ("never-entered", (0, 2, 4))


def test_a_rank_still_in_an_earlier_check_is_missing_from_the_later_one():
    earlier = step(9, left=True, check="allreduce")
    waits = (earlier, step(1, check="p2p", detail=""))
    found = judge(trial(rank(0, *waits), rank(1, earlier), rank(2, *waits)))
    assert (found.kind, found.suspects) == ("never-entered", (1,))


def test_a_stopped_rank_inside_the_collective_is_named_though_all_entered():
    frozen = rank(2, WAITING).model_copy(update={"state": "T"})
    found = judge(trial(rank(0, WAITING), rank(1, WAITING), frozen))
    assert (found.kind, found.suspects) == ("stopped", (2,))


def test_an_uninterruptible_rank_is_named():
    hung = rank(0, WAITING).model_copy(update={"state": "D"})
    assert judge(trial(hung, rank(1, WAITING))).kind == "uninterruptible"


def test_when_all_ranks_are_stopped_nobody_is_named():
    all_stopped = [rank(n, WAITING).model_copy(update={"state": "T"}) for n in range(3)]
    assert judge(trial(*all_stopped)).suspects == ()


def test_the_first_death_is_the_cause_and_the_peers_errors_are_its_echo():
    dead = rank(1, WAITING, exit_code=-9, exited_at=2.0)
    later = rank(2, WAITING, exit_code=-6, exited_at=2.1)
    found = judge(trial(rank(0, WAITING, raised=CLOSED), dead, later, outcome="broken"))
    assert (found.kind, found.suspects) == ("died", (1,))


def test_ranks_that_all_die_at_one_moment_blame_nobody():
    dead = [rank(n, exit_code=-9, exited_at=2.0) for n in range(3)]
    found = judge(trial(*dead, outcome="broken"))
    assert (found.kind, found.suspects) == ("unsure", ())


def test_victims_alone_blame_nobody():
    found = judge(trial(*(rank(n, WAITING, raised=CLOSED) for n in range(3)), outcome="broken"))
    assert found.suspects == ()


def test_an_exception_of_its_own_is_the_cause_beside_those_that_blame_a_peer():
    own = Raised(type="ValueError", message="empty data set", where="data.py:3")
    evidence = (rank(0, WAITING, raised=CLOSED), rank(1, raised=own), rank(2, WAITING))
    found = judge(trial(*evidence, outcome="broken"))
    assert (found.kind, found.suspects) == ("raised", (1,))


def test_the_same_exception_everywhere_is_nobodys():
    own = Raised(type="RuntimeError", message="Unable to find address for: ib0", where="a.py:1")
    found = judge(trial(*(rank(n, WAITING, raised=own) for n in range(2)), outcome="broken"))
    assert (found.kind, found.suspects) == ("raised-everywhere", ())


def test_a_rank_that_wrote_nothing_never_began():
    silent = RankEvidence(rank=1, state="R")
    assert judge(trial(rank(0, step(1)), silent)).kind == "never-began"


def test_the_minority_of_three_different_calls_is_the_suspect():
    calls = [flight("all_reduce", 8), flight("broadcast", 8), flight("all_reduce", 8)]
    found = judge(trial(*(rank(n, WAITING, flight=(call,)) for n, call in enumerate(calls))))
    assert (found.kind, found.suspects) == ("mismatch", (1,))


def test_between_two_the_one_off_its_announced_call_is_the_suspect():
    calls = [flight("all_reduce", 8), flight("all_reduce", 16)]
    found = judge(trial(*(rank(n, WAITING, flight=(call,)) for n, call in enumerate(calls))))
    assert (found.kind, found.suspects) == ("mismatch", (1,))


def test_two_equal_halves_that_both_announced_what_they_called_are_unsure():
    ranks = (
        rank(0, step(3, detail="float32 [8]"), flight=(flight("all_reduce", 8),)),
        rank(1, step(3, detail="float32 [16]"), flight=(flight("all_reduce", 16),)),
    )
    found = judge(trial(*ranks))
    assert (found.kind, found.suspects) == ("mismatch", ())


def test_an_aborted_receiver_is_not_blamed_for_its_peers_wrong_size():
    aborted = rank(0, WAITING, exit_code=-6, exited_at=1.0, output_tail="gloo::EnforceNotMet")
    other = rank(1, WAITING, flight=(flight("all_reduce", 16),))
    found = judge(trial(aborted, other, outcome="broken"))
    assert (found.kind, found.suspects) == ("mismatch", (1,))


def test_an_aborted_receiver_without_further_evidence_blames_nobody():
    aborted = rank(0, WAITING, exit_code=-6, exited_at=1.0, output_tail="gloo::EnforceNotMet")
    assert judge(trial(aborted, rank(1, WAITING), outcome="broken")).suspects == ()


def test_both_ends_of_a_stuck_transfer_are_a_pair_and_no_rank():
    found = judge(trial(rank(0, step(1, peers=[1])), rank(1, step(1, peers=[0])), rank(2, WAITING)))
    assert (found.kind, found.suspects, found.pairs) == ("pair", (), ((0, 1),))


def test_a_partner_that_waits_for_nobody_is_missing_from_the_transfer():
    found = judge(trial(rank(0, step(1, peers=[1])), rank(1, step(1, left=True, peers=[2]))))
    assert (found.kind, found.suspects, found.waiting) == ("never-entered", (1,), (0,))


def test_a_chain_of_waiting_pairs_names_the_pair_at_its_end():
    ranks = (
        rank(0, step(2, peers=[1])),  # waits for 1, which still waits for 2
        rank(1, step(1, peers=[2])),
        rank(2, step(1, peers=[1])),
        rank(3, step(2, peers=[2])),
    )
    assert judge(trial(*ranks)).pairs == ((1, 2),)


def test_a_collective_that_all_entered_blames_nobody():
    found = judge(trial(*(rank(n, WAITING) for n in range(4))))
    assert (found.kind, found.suspects) == ("all-entered", ())


def test_a_slow_trial_blames_nobody():
    found = judge(trial(rank(0, WAITING), rank(1, step(2, left=True)), outcome="slow"))
    assert (found.kind, found.suspects) == ("slow", ())


@pytest.mark.parametrize(
    "message", ["Connection reset by peer", "Timed out waiting 20000ms for recv operation"]
)
def test_victims_words_are_known(message):
    from ddp_doctor.knowledge.victims import blames_peer

    assert blames_peer(message)


def test_a_missing_interface_is_not_a_victims_word():
    from ddp_doctor.knowledge.victims import blames_peer

    assert not blames_peer("Unable to find address for: ib0")
