"""The rank-coded payloads are exact in every type, and a wrong sum names its rank."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge import payload
from ddp_doctor.knowledge.pairs import rounds

WORLDS = [1, 2, 3, 4, 7, 8, 16, 63, 64, 100, 128]


@pytest.mark.parametrize("ranks", WORLDS)
def test_every_case_is_exact_in_its_type_in_any_order(ranks):
    import torch

    for dtype, op in payload.exact_cases(ranks):
        shares = [
            torch.tensor(payload.share(op, rank, ranks, dtype), dtype=getattr(torch, dtype))
            for rank in range(ranks)
        ]
        total = shares[0]
        for share in reversed(shares[1:]):  # one by one, so that every partial result is rounded
            total = _apply(op, total, share)
        assert float(total) == float(payload.expected(op, ranks, dtype)), (dtype, op)


def _apply(op: str, one: Any, other: Any) -> Any:
    import torch

    if op == "sum":
        return one + other
    if op == "product":
        return one * other
    return torch.maximum(one, other) if op == "max" else torch.minimum(one, other)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("factor", [0, 2])
def test_a_missing_or_doubled_share_names_its_rank(ranks, factor):
    for dtype, op in payload.exact_cases(ranks):
        if op == "sum":
            shares = [payload.share(op, rank, ranks, dtype) for rank in range(ranks)]
            for rank in range(ranks):
                got = sum(shares) + (factor - 1) * shares[rank]
                assert payload.blame(op, got, ranks, dtype) == (rank,), dtype


@given(st.integers(min_value=2, max_value=64), st.floats(allow_nan=True, allow_infinity=True))
def test_blame_names_at_most_one_rank_whatever_came_out(ranks, got):
    assert len(payload.blame("sum", got, ranks, "float32")) <= 1


@given(st.integers(min_value=1, max_value=40))
def test_every_pair_meets_once_and_nobody_twice_in_a_round(ranks):
    schedule = rounds(ranks)
    met = [pair for pairs in schedule for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    for pairs in schedule:
        present = [rank for pair in pairs for rank in pair]
        assert len(present) == len(set(present))
