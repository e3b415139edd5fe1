"""The last rank is determined without clocks, and it is late by the time that the others lose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.views.windows import late, meet
from tests.features.trace.made_facts import job, moved, of_rank

EVEN, SLOW = [20_000.0] * 4, [50_000.0] * 4
TWO = job([EVEN, SLOW])


def shares(ranks: tuple[TraceFact, ...]) -> dict[int | None, float]:
    return {ranks[one.place].rank: one.share for one in late(ranks, meet(ranks).meetings)}


@given(
    st.lists(st.lists(st.floats(1e3, 1e5), min_size=3, max_size=3), min_size=2, max_size=4),
    st.lists(st.floats(-1e9, 1e9), min_size=4, max_size=4),
)
def test_lateness_does_not_depend_on_clocks(computing: list[list[float]], offsets: list[float]):
    ranks = job(computing)
    elsewhere = tuple(moved(fact, by) for fact, by in zip(ranks, offsets, strict=False))

    assert shares(elsewhere) == pytest.approx(shares(ranks), abs=1e-6)


@given(
    st.lists(st.lists(st.floats(1e3, 1e5), min_size=3, max_size=3), min_size=2, max_size=4),
    st.floats(0.1, 10.0),
    st.randoms(use_true_random=False),
)
def test_neither_the_unit_of_time_nor_the_order_of_ranks_matters(computing: list[list[float]], times: float, random):
    ranks = job(computing)
    order = list(ranks)
    random.shuffle(order)

    assert shares(tuple(moved(fact, times=times) for fact in order)) == pytest.approx(shares(ranks), abs=1e-6)


def test_clock_drift_within_the_limit_of_ntp_gives_the_same_rank():
    [first, _] = late(ranks := (TWO[0], moved(TWO[1], by=2e6, times=1.0005)), meet(ranks).meetings)

    assert first.place == 1
    assert first.share == pytest.approx(30 / 52, rel=0.01)


def test_two_of_three_ranks_cannot_be_late():
    assert max(shares(job([EVEN, SLOW, SLOW])).values()) < 0.01


def test_late_start_in_a_gloo_thread_does_not_make_the_rank_late():
    ranks = job([EVEN, EVEN])
    calls = tuple(call.model_copy(update={"begin_us": call.begin_us + 1_500.0}) for call in ranks[0].calls)

    assert shares(of_rank(ranks, 0, calls=calls)) == {0: 0.0, 1: 0.0}
    on_gpu = tuple(fact.model_copy(update={"device": "gpu"}) for fact in of_rank(ranks, 0, calls=calls))
    assert shares(on_gpu)[0] > 0


def test_steps_with_different_collectives_are_skipped_and_named():
    met = meet(of_rank(TWO, 1, calls=TWO[1].calls[1:]))
    assert [meeting.step for meeting in met.meetings] == [4, 5, 6]
    assert met.problem == "the ranks have not the same collectives in step 3"

    larger = tuple(call.model_copy(update={"size_bytes": 8}) for call in TWO[1].calls)
    met = meet(of_rank(TWO, 1, calls=larger))
    assert met == ((), "the ranks have not the same collectives in any step")


def test_sends_and_receives_do_not_affect_other_ranks():
    pairs = [
        fact.model_copy(update={"calls": tuple(call.model_copy(update={"kind": "send_recv"}) for call in fact.calls)})
        for fact in TWO
    ]

    assert meet(pairs) == ((), "")


def test_calls_in_backward_count_if_gloo_does_not_distinguish_groups():
    def both(fact: TraceFact) -> TraceFact:
        last = fact.steps[0].end_us
        pair = fact.calls[0].model_copy(update={"begin_us": last, "called_us": last, "end_us": last + 10})
        backward = tuple(call.model_copy(update={"during": "backward"}) for call in fact.calls)
        return fact.model_copy(update={"groups": {"0": 2, "1": 2}, "calls": (*backward, pair)})

    ranks = [both(fact) for fact in TWO]
    assert len(meet(ranks).meetings) == 4
    assert len(meet([fact.model_copy(update={"groups": {}}) for fact in ranks]).meetings) == 5


def test_ranks_of_two_jobs_with_the_same_steps_do_not_leave_together():
    other = job([[90_000.0, 20_000.0, 150_000.0, 20_000.0]] * 2)

    assert meet((TWO[0], other[1])).problem.startswith("collectives do not end together on all ranks")


def test_single_rank_has_no_meetings():
    assert meet(TWO[:1]) == ((), "")
    assert late(TWO[:1], ()) == ()
