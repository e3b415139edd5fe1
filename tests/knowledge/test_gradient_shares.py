"""Closed forms of unequal shares: what is right is right in every format, and what is off is named."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.ddp import gradient_code as code

SHARES = st.lists(st.integers(0, 7), min_size=1, max_size=9).map(tuple)


def owed(shares: tuple[int, ...], elements: int = 70, kind: str = "float32", rank: int = 0) -> code.Expectation:
    ranks = len(shares)
    place = code.Place("weight", 1, elements, rank, tuple(range(10, 10 + ranks)))
    return code.Expectation(place, tuple(map(float, shares)), code.tolerance_in(kind, ranks))


def reduced(one: code.Expectation, entered: tuple[int, ...], kind: str) -> Any:
    """The mean as a backend computes it: divided and added in the format, rank after rank."""
    import torch

    dtype = getattr(torch, kind)
    ranks, index = len(entered), torch.arange(one.place.elements)
    total = torch.zeros(one.place.elements, dtype=dtype)
    for rank, times in enumerate(entered):
        total += (times * code.local(1, index, rank, ranks)).to(dtype) / ranks
    return total


@given(shares=SHARES, kind=st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
def test_a_correct_mean_is_within_the_tolerance_of_its_format(shares, kind):
    one = owed(shares, kind=kind)
    assert code.compare(one, reduced(one, shares, kind), identical=True).equal


@given(shares=SHARES.filter(lambda some: len(some) > 2 and all(some)), data=st.data())
def test_a_missing_rank_is_named(shares, data):
    lost = data.draw(st.integers(0, len(shares) - 1))
    one = owed(shares)
    entered = tuple(0 if rank == lost else share for rank, share in enumerate(shares))
    off = code.compare(one, reduced(one, entered, "float32"), identical=True)
    assert not off.equal
    assert off.held.shares == {10 + lost: 0.0}


def test_a_parameter_that_nobody_uses_has_no_gradient():
    import torch

    one = owed((0, 0, 0))
    assert code.compare(one, None, identical=True).equal
    assert code.compare(one, torch.zeros(70), identical=True).equal
    assert not code.compare(one, torch.ones(70), identical=True).equal


def test_a_missing_or_infinite_gradient_is_off():
    import torch

    one = owed((1, 1))
    assert code.compare(one, None, identical=True).held.holds == "absent"
    assert code.compare(one, torch.full((70,), torch.inf), identical=True).held.holds == "not_finite"


def test_fewer_elements_than_ranks_name_nobody():
    import torch

    one = owed((1,) * 9, elements=4)
    assert code.compare(one, torch.ones(4), identical=True).held.holds == "other"


@pytest.mark.parametrize("shares", [(1, 1, 1, 1), (7, 7)])
def test_a_gradient_of_ones_own_reads_so(shares):
    import torch

    one = owed(shares, rank=1)
    mine = shares[1] * code.local(1, torch.arange(70), 1, len(shares)).float()
    assert code.compare(one, mine, identical=False).held.holds == "own"
