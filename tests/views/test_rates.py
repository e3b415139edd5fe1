"""The failure rate of repeats, and whether they become slower."""

import random
from collections.abc import Sequence

import pytest

from ddp_doctor.facts.collectives import GroupTest
from ddp_doctor.views.rates import slowed, wilson
from ddp_doctor.wording.repeats import clock, failures, percent


def repeats(rates: Sequence[float]) -> list[GroupTest]:
    return [
        GroupTest(round=number, nodes=(0,), outcome="passed", bytes_per_s=rate) for number, rate in enumerate(rates)
    ]


def noisy(count: int, spread: float = 0.1, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [1e9 * chance.gauss(1.0, spread) for _ in range(count)]


@pytest.mark.parametrize(
    ("failed", "tests", "low", "high"),
    [  # by the formula of Brown, Cai and DasGupta (2001), section 3.1.1
        (0, 40, 0.0, 0.0876),
        (3, 40, 0.0258, 0.1986),
        (1, 17, 0.0105, 0.2698),
        (8, 40, 0.1050, 0.3476),
        (40, 40, 0.9124, 1.0),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_interval_of_a_rate_is_the_wilson_interval(failed: int, tests: int, low: float, high: float):
    assert list(wilson(failed, tests)) == pytest.approx([low, high], abs=1e-4)


def test_interval_contains_the_rate_as_often_as_stated():
    chance, rate, held = random.Random(3), 0.1, 0
    for _ in range(2000):
        low, high = wilson(sum(chance.random() < rate for _ in range(40)), 40)
        held += low <= rate <= high

    assert 0.92 <= held / 2000 <= 0.98


@pytest.mark.parametrize("seed", range(20))
def test_constant_repeats_do_not_become_slower(seed: int):
    for count in (15, 40, 300):
        tests = repeats(noisy(count, 0.15, seed))

        assert slowed(tests, 0.15) is None


@pytest.mark.parametrize("falls", ["slowly", "at once"])
def test_repeats_that_lose_a_quarter_of_their_rate_become_slower(falls: str):
    rates = noisy(60, 0.03)
    shares = [1 - 0.3 * number / 59 if falls == "slowly" else 1 - 0.25 * (number > 29) for number in range(60)]
    found = slowed(repeats([rate * share for rate, share in zip(rates, shares, strict=True)]), 0.15)

    assert found is not None
    assert found[1] < 0.85 * found[0]


def test_fewer_than_fifteen_or_faster_repeats_are_not_slowed():
    falling = [1e9 - 5e7 * number for number in range(14)]

    assert slowed(repeats(falling), 0.15) is None
    assert slowed(repeats([*reversed(falling), 1.1e9]), 0.15) is None


def test_rates_and_times_are_described():
    tests = [*repeats(noisy(16)), GroupTest(round=16, nodes=(0,), outcome="hung")]
    told_nothing = GroupTest(round=17, nodes=(0,), outcome="unknown")

    assert failures(tests) == failures([*tests, told_nothing]) == "1 failed (5.9%, 1 to 27%)"
    assert failures(tests[:1]) == failures([]) == failures([told_nothing]) == "none failed"
    assert [percent(share) for share in (1.0, 0.2, 0.0958, 0.026, 0.00038)] == ["100", "20", "9.6", "2.6", "0.038"]
    assert [clock(seconds) for seconds in (0.2, 41.0, 723.4, 7380.0)] == ["00:00", "00:41", "12:03", "2:03:00"]
