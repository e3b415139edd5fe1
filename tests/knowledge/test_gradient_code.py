"""The gradient code: every set of shares is read back from the gradient that it gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.ddp import gradient_code as code

RANKS = st.integers(min_value=1, max_value=64)


def gradient(weights: list[float], parameter: int = 0) -> list[float]:
    """The first elements of the sum of weight x local gradient over n."""
    ranks = len(weights)
    everyone = range(ranks)
    return [
        sum(weights[rank] * code.local(parameter, element, rank, ranks) for rank in everyone) / ranks
        for element in everyone
    ]


def read(weights: list[float], rank: int = 0, parameter: int = 0) -> code.Reading:
    values = [value / code.factor(parameter, 0, len(weights)) for value in gradient(weights, parameter)]
    return code.read(code.weights(values), rank)


@given(RANKS, st.integers(0, 9), st.integers(0, 10_000))
def test_the_mean_of_the_local_gradients_is_the_closed_form(ranks, parameter, element):
    total = sum(code.local(parameter, element, rank, ranks) for rank in range(ranks))
    assert total == ranks * 2 * code.factor(parameter, element, ranks)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_weights_are_decoded_exactly(weights):
    assert code.weights(gradient(weights)) == pytest.approx(weights, abs=1e-9)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=40), st.data())
def test_reading_identifies_exactly_the_wrong_ranks(weights, data):
    rank = data.draw(st.integers(0, len(weights) - 1))
    off = {other: weight for other, weight in enumerate(weights) if weight != 1}
    reading = read(weights, rank)
    assert (reading.holds == "mean") == (not off)
    if reading.holds == "shares":
        assert reading.shares == off


@given(st.integers(2, 64), st.data())
def test_gradient_of_only_one_rank_is_distinguished_from_a_missing_one(ranks, data):
    only = data.draw(st.integers(0, ranks - 1))
    alone = [float(ranks) if rank == only else 0.0 for rank in range(ranks)]
    assert read(alone, rank=only) == code.Reading(holds="own")
    other = (only + 1) % ranks
    assert read(alone, rank=other) == code.Reading(holds="one_rank", shares={only: ranks})


@pytest.mark.parametrize(("scale", "words"), [(4, "the sum of"), (0, "zero"), (0.25, "0.25 times")])
def test_scaled_mean_is_recognized(scale, words):
    reading = read([scale] * 4)
    assert reading == code.Reading(holds="scaled", scale=scale)
    assert words in code.words(reading, 4)


def test_more_ranks_off_than_are_worth_listing_are_unsure():
    reading = read([0.0] * 20 + [1.0] * 40)
    assert reading == code.Reading(holds="other")
    assert "no combination of the ranks' gradients" in code.words(reading, 60)


@given(RANKS)
def test_a_missing_rank_is_far_outside_the_tolerance(ranks):
    complete, lacking = 2.0, 2.0 - 1.0 - 1.0 / ranks
    assert complete - lacking > 1000 * code.tolerance(ranks) * complete


@given(st.integers(1, 400_000))
def test_local_gradients_are_exact_in_float32(ranks):
    assert 3 * code.local(4, 7 * ranks, 0, ranks) < 2**24


def test_equal_bits_have_equal_checksums_and_swapped_elements_do_not():
    import torch

    one = torch.tensor([1.0, 2.0, 3.0])
    assert code.checksum(one) == code.checksum(one.clone())
    assert code.checksum(one) != code.checksum(torch.tensor([2.0, 1.0, 3.0]))
    assert code.checksum(one) != code.checksum(torch.nextafter(one, one + 1))
