"""busbw against nccl-tests' definition."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.probing.all_reduces import FACTORS, busbw

OPS = st.sampled_from(sorted(FACTORS))
RANKS = st.integers(min_value=1, max_value=100_000)
ALGBW = st.floats(min_value=1e-6, max_value=1e15)

#: Element transfers over all ranks' links per element of the array, as doc/PERFORMANCE.md counts them.
TRANSFERS = {
    "all_reduce": lambda n: 2 * (n - 1),
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: n - 1,
    "alltoall": lambda n: n - 1,
    "gather": lambda n: n - 1,
    "scatter": lambda n: n - 1,
    "broadcast": lambda n: n,
    "reduce": lambda n: n,
    "sendrecv": lambda n: n,
}


@given(OPS, RANKS, ALGBW)
def test_busbw_is_the_transfers_shared_by_n_links(op, ranks, algbw):
    factor = Fraction(TRANSFERS[op](ranks), ranks)
    assert busbw(op, algbw, ranks) == pytest.approx(algbw * float(factor), rel=1e-12)


@given(OPS, RANKS, ALGBW)
def test_busbw_grows_with_the_ranks_and_stays_below_twice_algbw(op, ranks, algbw):
    assert busbw(op, algbw, ranks) <= busbw(op, algbw, ranks + 1) <= 2 * algbw


@given(RANKS, ALGBW)
def test_all_reduce_is_reduce_scatter_and_all_gather(ranks, algbw):
    parts = busbw("reduce_scatter", algbw, ranks) + busbw("all_gather", algbw, ranks)
    assert busbw("all_reduce", algbw, ranks) == pytest.approx(parts)


def test_eight_ranks_give_all_reduce_the_factor_seven_quarters():
    assert busbw("all_reduce", 100.0, 8) == 175.0


def test_one_rank_moves_nothing_over_a_link():
    assert busbw("all_reduce", 50.0, 1) == 0.0
    assert busbw("broadcast", 50.0, 1) == 50.0


def test_an_unknown_collective_is_refused():
    with pytest.raises(ValueError, match="hypercube"):
        busbw("hypercube", 1.0, 2)


def test_no_ranks_are_refused():
    with pytest.raises(ValueError, match="at least one rank"):
        busbw("all_reduce", 1.0, 0)
