"""Gradients next to their closed form: a correct mean is equal, and a wrong rank is reported."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.ddp import gradient_code as code

RANKS, TIMES = st.integers(1, 9), st.integers(1, 7)


def place(ranks: int, elements: int = 70, rank: int = 0) -> code.Place:
    return code.Place("weight", 1, elements, rank, tuple(range(10, 10 + ranks)))


def reduced(entered: tuple[int, ...], elements: int = 70) -> Any:
    """The mean as a backend computes it in float32: divided and added, rank after rank."""
    import torch

    ranks, index = len(entered), torch.arange(elements)
    total = torch.zeros(elements)
    for rank, times in enumerate(entered):
        total += (times * code.local(1, index, rank, ranks)).float() / ranks
    return total


@given(ranks=RANKS, times=TIMES)
def test_a_correct_mean_is_within_the_tolerance(ranks, times):
    assert code.compare(place(ranks), times, reduced((times,) * ranks), identical=True).equal


@given(ranks=st.integers(3, 9), times=TIMES, data=st.data())
def test_missing_rank_is_reported(ranks, times, data):
    lost = data.draw(st.integers(0, ranks - 1))
    entered = tuple(0 if rank == lost else times for rank in range(ranks))
    off = code.compare(place(ranks), times, reduced(entered), identical=True)
    assert not off.equal
    assert off.held.shares == {10 + lost: 0.0}


def test_a_missing_or_infinite_gradient_is_off():
    import torch

    assert code.compare(place(2), 1, None, identical=True).held.holds == "absent"
    assert code.compare(place(2), 1, torch.full((70,), torch.inf), identical=True).held.holds == "not_finite"


def test_fewer_elements_than_ranks_identify_no_rank():
    import torch

    assert code.compare(place(9, elements=4), 1, torch.ones(4), identical=True).held.holds == "other"


@pytest.mark.parametrize(("ranks", "times"), [(4, 1), (2, 7)])
def test_gradient_that_was_not_averaged_is_the_ranks_own(ranks, times):
    import torch

    mine = times * code.local(1, torch.arange(70), 1, ranks).float()
    assert code.compare(place(ranks, rank=1), times, mine, identical=False).held.holds == "own"
