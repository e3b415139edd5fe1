"""Two samples of a flight recorder that retires finished work late: only what both show as open is open."""

import json
from pathlib import Path

from ddp_doctor.engine.hang.judgment import where_it_waits
from ddp_doctor.ranks.rank_state import RankState
from tests.launch.test_nccl_log_of_a_rank import rank

TRAIN = ["/home/me/train.py:88 in step"]


def answers(folder: Path, *entries: tuple[int, bool], recorder: str = "nccl2") -> None:
    flight = [{"seq": seq, "op": "all_reduce", "retired": retired} for seq, retired in entries]
    late = recorder == "nccl2"
    told = {"stack": TRAIN, "recorder": recorder, "retires_late": late, "flight": flight}
    (folder / "rank0.stack_dump.json").write_text(json.dumps(told))


def sampled(folder: Path, *samples: tuple[tuple[int, bool], ...]) -> RankState:
    state = rank(folder, done=False)
    answers(folder, *samples[0])
    assert state.has_to_answer_twice()
    state.keep_first_answer()
    assert not state.has_stack_dump()
    if len(samples) > 1:
        answers(folder, *samples[1])
    return state


def test_recently_finished_work_is_not_open(tmp_path: Path):
    found = sampled(tmp_path, ((16, True), (17, False)), ((16, True), (17, True))).evidence(False)

    assert [entry.is_open for entry in found.flight] == [False, False]
    assert (found.recorder, where_it_waits(found)) == ("nccl2", "outside")


def test_work_that_stays_open_is_what_the_rank_waits_for(tmp_path: Path):
    found = sampled(tmp_path, ((17, False),), ((17, False),)).evidence(False)

    assert [entry.is_open for entry in found.flight] == [True]
    assert where_it_waits(found) == "collective"


def test_rank_that_continued_between_the_samples_is_not_waiting(tmp_path: Path):
    found = sampled(tmp_path, ((17, False),), ((17, True), (18, False))).evidence(False)

    assert [entry.is_open for entry in found.flight] == [False, False]


def test_first_answer_counts_without_a_second(tmp_path: Path):
    found = sampled(tmp_path, ((17, False),)).evidence(False)

    assert [(entry.seq, entry.is_open) for entry in found.flight] == [(17, True)]
    assert found.stack == tuple(TRAIN)


def test_a_recorder_that_retires_at_once_and_finished_work_are_sampled_once(tmp_path: Path):
    state = rank(tmp_path, done=False)
    assert not state.has_to_answer_twice()
    answers(tmp_path, (17, False), recorder="nccl")
    assert not state.has_to_answer_twice()
    answers(tmp_path, (17, True))
    assert not state.has_to_answer_twice()
