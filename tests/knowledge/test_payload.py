"""The rank-coded payloads are exact in every type, and a wrong sum names its rank."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.knowledge.network.path_quality import rounds

WORLDS = [1, 2, 3, 4, 7, 8, 16, 63, 64, 100, 128]


@pytest.mark.parametrize("ranks", WORLDS)
def test_every_case_is_exact_in_its_type_in_any_order(ranks):
    import torch

    for dtype, op in payload.exact_cases(ranks):
        shares = [
            torch.tensor(payload.share(op, rank, ranks, dtype), dtype=getattr(torch, dtype)) for rank in range(ranks)
        ]
        total = shares[0]
        for share in reversed(shares[1:]):  # one at a time, so that every partial result is rounded
            total = _apply(op, total, share)
        assert float(total) == float(payload.expected(op, ranks, dtype)), (dtype, op)


def _apply(op: str, one: Any, other: Any) -> Any:
    import torch

    if op == "sum":
        return one + other
    if op == "product":
        return one * other
    return torch.maximum(one, other) if op == "max" else torch.minimum(one, other)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("factor", [0, 2])
def test_missing_or_doubled_share_identifies_its_rank_in_every_type(ranks, factor):
    import torch

    for rank in {0, 1, ranks // 2, ranks - 1}:
        blamed = []
        for dtype, op in payload.exact_cases(ranks):
            shares = [payload.share(op, one, ranks, dtype) for one in range(ranks)]
            shares[rank] *= factor
            total = torch.tensor(0, dtype=getattr(torch, dtype))
            for share in shares:
                total = total + torch.tensor(share, dtype=total.dtype)
            if op == "sum":
                blamed.append(payload.blame(op, total.item(), ranks, dtype))
                assert rank in blamed[-1], dtype
        assert payload.agreed(blamed) == rank


@given(st.integers(min_value=2, max_value=24), st.floats(allow_nan=True, allow_infinity=True))
def test_any_value_is_evaluated_and_the_blamed_ranks_share_a_power(ranks, got):
    blamed = payload.blame("sum", got, ranks, "float32")
    assert len({payload.share("sum", rank, ranks, "float32") for rank in blamed}) <= 1


@pytest.mark.parametrize(
    ("blamed", "rank"),
    [([(2,)], 2), ([(0, 7), (0,)], 0), ([(2,), (1,)], None), ([(2,), ()], None), ([(0, 7)], None), ([], None)],
)
def test_rank_is_reported_if_all_wrong_sums_allow_only_it(blamed, rank):
    assert payload.agreed(blamed) == rank


@given(st.integers(min_value=1, max_value=40))
def test_every_pair_meets_once_and_no_rank_twice_in_a_round(ranks):
    schedule = rounds(ranks)
    met = [pair for pairs in schedule for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    for pairs in schedule:
        present = [rank for pair in pairs for rank in pair]
        assert len(present) == len(set(present))
