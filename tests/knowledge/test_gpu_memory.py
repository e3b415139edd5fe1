"""How much of a GPU's memory a rank takes: never the GPU, and never more than half of what is left of it."""

from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.gpu.gpu_speed import LEAST_BYTES, MOST_BYTES, allowance

GIB = 1024**3


def test_a_large_free_gpu_gives_one_gib():
    assert allowance(78 * GIB) == GIB


def test_of_a_busy_gpu_a_tenth_of_the_rest_is_taken():
    assert allowance(8 * GIB) == int(0.8 * GIB)


def test_a_rank_gets_what_its_checks_cannot_do_without():
    assert allowance(2 * GIB) == LEAST_BYTES


def test_of_a_nearly_full_gpu_half_of_the_rest_stays_free():
    assert allowance(300 * 1024**2) == 150 * 1024**2


@given(st.integers(min_value=0, max_value=1 << 42))
def test_the_share_is_bounded_and_grows_with_what_is_free(free: int):
    assert 0 <= allowance(free) <= min(MOST_BYTES, free // 2)
    assert allowance(free + GIB) >= allowance(free)
