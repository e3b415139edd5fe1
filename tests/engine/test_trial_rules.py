"""The later trial that proves a rank to be at fault; recordings test the findings of the rules over trials."""

from typing import Any

from ddp_doctor.engine.hang.judge import judge
from ddp_doctor.engine.hang.rules import common
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import RankEvidence, Step, TrialRecord
from tests.readings import trial_of
from tests.recordings import load


def _with(recording: Recording, *trials: TrialRecord) -> Recording:
    return recording.model_copy(update={"trials": (*recording.trials, *trials)})


def _rank(number: int, *, seq: int = 3, **fields: Any) -> RankEvidence:
    step = Step(check="allreduce", name="all_reduce", seq=seq, detail="float32 [8]", where="a.py:1")
    return RankEvidence(rank=number, began=True, state="S", steps=(step,)).model_copy(update=fields)


def test_later_trial_without_the_failed_check_proves_nothing():
    trial = trial_of(_rank(0), _rank(1, seq=2), _rank(2))
    other = TrialRecord(trial="t8", ranks=(0, 2), checks=("process_group", "buffers"))
    same = other.model_copy(update={"checks": ("process_group", "allreduce")})
    recording = load("torchrun/healthy")

    assert not common.Case(_with(recording, trial, other), trial, judge(trial)).all_well_without
    assert common.Case(_with(recording, trial, same), trial, judge(trial)).all_well_without
