"""The share of a GPU's memory that a rank uses: never all of it, and never more than half of the free memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.gpu.gpu_speed import LEAST_BYTES, MOST_BYTES, allowance

GIB = 1024**3


@pytest.mark.parametrize(
    ("free", "taken"),
    [(78 * GIB, GIB), (8 * GIB, int(0.8 * GIB)), (2 * GIB, LEAST_BYTES), (300 * 1024**2, 150 * 1024**2)],
    ids=["one GiB", "a tenth of the rest", "what the checks need", "half of the rest"],
)
def test_rank_uses_a_share_of_the_free_memory(free: int, taken: int):
    assert allowance(free) == taken


@given(st.integers(min_value=0, max_value=1 << 42))
def test_share_is_bounded_and_grows_with_the_free_memory(free: int):
    assert 0 <= allowance(free) <= min(MOST_BYTES, free // 2)
    assert allowance(free + GIB) >= allowance(free)
