"""What the rules over trials say and keep silent about, on trials written by hand."""

from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.engine.hang.judge import judge
from ddp_doctor.engine.hang.rules import common, deaths, hangs, links, slowness
from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.choices import Confidence, Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import Raised, RankEvidence, Step, TrialRecord
from tests.readings import collected, only, plain_world, trial_of
from tests.recordings import load


def _with(recording: Recording, *trials: TrialRecord) -> Recording:
    return recording.model_copy(update={"trials": (*recording.trials, *trials)})


def _rank(number: int, *, check: str = "allreduce", seq: int = 3, **fields: Any) -> RankEvidence:
    detail, peers = fields.pop("detail", "float32 [8]"), fields.pop("peers", ())
    step = Step(check=check, name="all_reduce", seq=seq, detail=detail, peers=peers, where="a.py:1")
    return RankEvidence(rank=number, began=True, state="S", steps=(step,)).model_copy(update=fields)


def test_an_exception_of_your_model_in_ddp_is_named_with_its_own_line():
    said = Raised(type="StepFailed", message="KeyError at net.py:9: 'x'", where="/ddp_doctor/steps.py:1")
    raising = _rank(1, check="user_model", raised=said)
    forward = raising.steps[0].model_copy(update={"name": "forward"})
    trial = trial_of(_rank(0), raising.model_copy(update={"steps": (forward,)}), judged_check="user_model")

    found = only(deaths.raised.apply(_with(load("torchrun/healthy"), trial)))

    assert found.title == "Rank 1 raised KeyError at net.py:9 in the forward of your model in DDP"


def test_a_rank_that_dies_in_your_model_is_said_to_have_died_there():
    waits = Step(check="user_model", name="compare_outcomes", seq=10, detail="pass 0", where="probe.py:113")
    before = waits.model_copy(update={"seq": 9, "detail": "inputs", "left_at": 1.0})
    dead = _rank(1, steps=(before,), exit_code=-9, exited_at=2.0)
    trial = trial_of(_rank(0, steps=(before, waits)), dead, judged_check="user_model")

    found = only(deaths.died.apply(_with(load("torchrun/healthy"), trial)))

    assert found.title == "Rank 1 was killed by SIGKILL in your forward, loss or backward"
    assert [evidence.text.partition("start, ")[2] or evidence.text for evidence in found.evidence] == [
        "last step the comparison after inputs at probe.py:113",
        "rank 0 waiting in the comparison after pass 0 at probe.py:113",
    ]


def test_uninterruptible_sleep_seen_once_is_likely_and_not_proved():
    trial = trial_of(_rank(0, state="D"), _rank(1))

    assert only(hangs.not_running.apply(_with(load("torchrun/healthy"), trial))).confidence is (Confidence.LIKELY)


def test_a_later_trial_without_the_judged_check_proves_nothing():
    trial = trial_of(_rank(0), _rank(1, seq=2), _rank(2))
    other = TrialRecord(trial="t8", ranks=(0, 2), checks=("process_group", "buffers"))
    same = other.model_copy(update={"checks": ("process_group", "allreduce")})
    recording = load("torchrun/healthy")

    assert not common.Case(_with(recording, trial, other), trial, judge(trial)).all_well_without
    assert common.Case(_with(recording, trial, same), trial, judge(trial)).all_well_without


def test_a_refused_setting_explains_an_abort_but_no_kill():
    recording = load("env_vars/torch-bool-on")
    waits = _rank(0, check="process_group")
    aborted = _rank(1, check="process_group", exit_code=-6, exited_at=1.0)
    killed = aborted.model_copy(update={"exit_code": -9})

    assert deaths.died.apply(_with(recording, trial_of(waits, aborted, judged_check="process_group"))) == []
    found = only(deaths.died.apply(_with(recording, trial_of(waits, killed, judged_check="process_group"))))
    assert found.culprits[0].rank == 1


def _limited(recording: Recording, files: int) -> Recording:
    fact = Host(cpus=8, open_files=files).recorded()
    host = Reading(check="host", status=Status.COLLECTED, fact=fact)
    return recording.model_copy(update={"readings": (*recording.readings, host)})


@pytest.mark.parametrize(
    ("files", "message", "expected"),
    [
        (20, "[Errno 24] Too many open files", {"DD223"}),
        (20, "bind: code: -24, name: EMFILE, message: too many open files", {"DD223"}),
        (1 << 20, "[Errno 24] Too many open files", {"DD613"}),
        (20, "division by zero", {"DD223", "DD613"}),
    ],
)
def test_a_rank_out_of_files_is_explained_by_a_low_limit_and_by_nothing_else(files, message, expected):
    raising = _rank(1, raised=Raised(type="OSError", message=message, where="a.py:1"))
    trial = trial_of(_rank(0), raising).model_copy(update={"outcome": "broken"})
    world = plain_world(1, 2)
    found = app.judge(_limited(Recording(world=world, trials=(trial,)), files)).report.findings
    assert {finding.code for finding in found} == expected


def test_a_rank_may_come_late_where_other_work_keeps_all_nodes_busy():
    recording = load("hang/rank-comes-late")

    def on_nodes(*loads: float) -> Recording:
        readings = [collected("host", Host(cpus=2, load_1min=load), node) for node, load in enumerate(loads)]
        return recording.model_copy(update={"readings": (*recording.readings, *readings)})

    assert only(slowness.late.apply(on_nodes(13.0, 0.5))).evidence[0].expected == 2.0
    assert slowness.late.apply(on_nodes(13.0, 9.0)) == []


def test_four_ranks_of_which_no_two_exchange_data_are_one_finding_that_names_nobody():
    recording = load("torchrun/healthy")
    assert recording.world is not None
    world = recording.world.model_copy(update={"world_size": 4})
    rounds = [((0, 3), (1, 2)), ((0, 2), (1, 3)), ((0, 1), (2, 3))]
    trials = [
        trial_of(*(_rank(a, peers=(b,), check="p2p") for pair in two for a, b in (pair, pair[::-1]))) for two in rounds
    ]

    found = only(links.pair.apply(_with(recording.model_copy(update={"world": world}), *trials)))

    assert found.title.startswith("No two of the 4 ranks exchange data: 6 pairs of ranks are stuck")
    assert not found.culprits


def _rounds(*rounds: tuple[tuple[int, int], ...]) -> list[TrialRecord]:
    return [
        trial_of(
            *(_rank(a, peers=(b,), check="p2p") for pair in two for a, b in (pair, pair[::-1])), judged_check="p2p"
        )
        for two in rounds
    ]


def _three_ranks(*passed: tuple[int, int]) -> Recording:
    recording = load("torchrun/healthy")
    assert recording.world is not None
    world = recording.world.model_copy(update={"world_size": 3})
    readings = [Reading(check="p2p", status=Status.COLLECTED, rank=one, fact=_p2p_fact(other)) for one, other in passed]
    return recording.model_copy(update={"world": world, "readings": (*recording.readings, *readings)})


def _p2p_fact(peer: int) -> dict[str, object]:
    one = PairResult(peer=peer, wrong_bytes=0, latency_us=9.0, bandwidth_gb_per_s=1.0, size_bytes=1024)
    return P2pFact(pairs=(one,)).recorded()


def test_a_rank_of_two_stuck_pairs_is_not_named_while_no_pair_without_it_has_passed():
    trials = _rounds(((0, 1),), ((0, 2),))  # the time was used up before ranks 1 and 2 were tried

    found = links.pair.apply(_with(_three_ranks(), *trials))

    assert [one.culprits[0].kind for one in found] == ["pair", "pair"]
    assert all(one.detail.endswith("faulty. Not all other pairs were tested.") for one in found)


def test_a_rank_of_two_stuck_pairs_is_named_where_the_pair_without_it_passed():
    found = only(links.pair.apply(_with(_three_ranks((1, 2)), *_rounds(((0, 1),), ((0, 2),)))))

    assert found.title.startswith("Rank 0 cannot exchange data with rank 1 and rank 2: ")


def test_only_pairs_that_were_tested_are_said_to_have_been():
    stuck = _rounds(((0, 1),))
    all_but_one = only(links.pair.apply(_with(_three_ranks((1, 2), (2, 1)), *stuck)))
    all_of_them = only(links.pair.apply(_with(_three_ranks((1, 2), (2, 0)), *stuck)))
    there_is_no_other = only(links.pair.apply(_with(load("torchrun/healthy"), *stuck)))

    assert all_but_one.detail.endswith("Not all other pairs were tested.")
    assert all_of_them.detail.endswith("All other pairs work.")
    assert there_is_no_other.detail.endswith("so the link between them is faulty.")
