"""Traces are put together by their steps, and what cannot be judged is said."""

import pytest

from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.views.windows import problem, windows
from tests.features.trace.made_facts import job, of_rank, recording

EVEN = [20_000.0] * 3
TWO = job([EVEN, EVEN])
LATER = tuple(fact.model_copy(update={"file": f"later_{fact.file}"}) for fact in job([EVEN, EVEN], first=20))


def of(ranks: tuple[TraceFact, ...], window: str = "latest") -> list[tuple[int, list[int | None]]]:
    return [(one.number, [fact.rank for fact in one.ranks]) for one in windows(recording(ranks, window))]


def test_ranks_with_the_same_steps_are_one_window_in_any_order():
    assert of(tuple(reversed(TWO))) == [(1, [0, 1])]
    assert problem(recording(TWO)) == ""
    assert windows(recording(TWO))[0].is_whole


def test_latest_window_is_analyzed_by_default():
    both = (LATER[1], TWO[0], TWO[1], LATER[0])

    assert of(both) == [(2, [0, 1])]
    assert of(both, "all") == [(1, [0, 1]), (2, [0, 1])]
    assert of(both, "1") == [(1, [0, 1])]
    assert problem(recording(both, "3")) == "there is no window 3"


def test_windows_without_numbers_of_steps_follow_the_order_of_each_ranks_files():
    files = [
        fact.model_copy(update={"marked_by": "optimizer", "begin_us": begin})
        for begin, ranks in ((1e6, TWO), (2e6, LATER))
        for fact in ranks
    ]

    assert of((files[3], files[0], files[2], files[1]), "all") == [(1, [0, 1]), (2, [0, 1])]
    assert windows(recording(files))[0].ranks[0].file == "later_rank0.json.gz"


def test_ranks_with_partly_overlapping_steps_use_the_common_steps():
    ranks = (TWO[0], job([EVEN, EVEN], first=4)[1])

    assert of(ranks) == [(1, [0, 1])]
    assert {meeting.step for meeting in windows(recording(ranks))[0].met.meetings} == {4, 5}


TWICE = (*TWO, TWO[0].model_copy(update={"file": "b/rank0.json.gz"}))
LARGER = of_rank(TWO, 1, world_size=4)
MERGED = of_rank(TWO, 1, processes=2)
EMPTY = of_rank(TWO, 1, steps=(), calls=())
NAMELESS = of_rank(TWO, 1, rank=None)


@pytest.mark.parametrize(
    ("ranks", "words", "judged"),
    [
        (TWICE, "rank 0 occurs 2 times with the same steps (rank0.json.gz and b/rank0.json.gz)", []),
        (LARGER, "the traces are of jobs of 2 and 4 ranks", []),
        (MERGED, "rank1.json.gz: 2 processes are merged in it; give one file for each rank; 1 of 2 ranks", [(1, [0])]),
        (EMPTY, "rank1.json.gz: no whole step is in it; 1 of 2 ranks", [(1, [0])]),
        (NAMELESS, "rank1.json.gz: neither the trace nor its name shows the rank", [(1, [0])]),
        (TWO[1:], "1 of 2 ranks is here: waiting or transfer is not known", [(1, [1])]),
        (job([EVEN] * 8)[:2], "2 of 8 ranks are here: others may have come later", [(1, [0, 1])]),
        ((TWO[0], LATER[1]), "1 of 2 ranks is here; the traces of others are of other steps", [(2, [1])]),
        (of_rank(of_rank(TWO, 0, calls=()), 1, calls=()), "the trace has no collective", [(1, [0, 1])]),
        (of_rank(TWO, 1, calls=TWO[1].calls[1:]), "the ranks have not the same collectives in step 3", [(1, [0, 1])]),
    ],
)
def test_unusable_traces_are_reported(ranks: tuple[TraceFact, ...], words: str, judged: list[tuple[int, list[int]]]):
    assert problem(recording(ranks)).startswith(words)
    assert of(ranks) == judged


def test_single_process_needs_no_rank_number():
    alone = job([EVEN])[0].model_copy(update={"rank": None, "world_size": None, "calls": ()})

    assert of((alone,)) == [(1, [None])]
    assert problem(recording((alone,))) == "the trace has no collective, so it does not show which rank waits"


def test_more_ranks_may_exist_if_their_number_is_unknown():
    """Healthy was said once of three ranks of four."""
    unknown = tuple(fact.model_copy(update={"world_size": None}) for fact in job([EVEN] * 3))
    by_group = tuple(
        fact.model_copy(update={"calls": tuple(call.model_copy(update={"ranks": 3}) for call in fact.calls)})
        for fact in unknown
    )

    assert windows(recording(by_group))[0].is_whole
    assert not windows(recording(unknown))[0].is_whole
    assert problem(recording(unknown[1:])) == "2 of an unknown number of ranks are here: others may have come later"


def test_rank_that_meets_others_is_not_the_whole_job():
    alone = (TWO[0].model_copy(update={"world_size": None}),)

    assert not windows(recording(alone))[0].is_whole
    assert "waiting or transfer is not known" in problem(recording(alone))


def test_window_of_a_huge_number_of_ranks_is_incomplete():
    told = recording(tuple(fact.model_copy(update={"world_size": 10**30}) for fact in TWO))

    assert not windows(told)[0].is_whole


def test_rank_without_collectives_is_reported_if_other_ranks_have_some():
    three = job([EVEN, EVEN, EVEN])
    told = recording((three[0].model_copy(update={"calls": ()}), *three[1:]))

    assert "rank0.json.gz: it has no collective, although" in problem(told)


def test_trace_without_steps_names_the_missing_marks():
    told = problem(recording((TWO[0].model_copy(update={"steps": (), "calls": (), "marked_by": ""}),)))

    assert "neither profiler.step() nor Optimizer.step" in told
