"""Tests that were repeated: how often they fail, and whether they become slower."""

from collections.abc import Sequence
from math import sqrt
from statistics import median

from ddp_doctor.facts.collectives import GroupTest, RepeatsFact
from ddp_doctor.knowledge.baselines import DEVIATIONS, SIGMA
from ddp_doctor.knowledge.thresholds import FEWEST_REPEATS
from ddp_doctor.model.recording import Recording

#: The quantile of the normal distribution for an interval of 95 %.
_Z = 1.959964
#: The standard error of a median of what is spread normally, in those of a mean: the square root of pi / 2.
_OF_MEDIAN = 1.2533
FAILED = ("failed", "hung", "wrong")


def wilson(failed: int, tests: int) -> tuple[float, float]:
    """The interval (0 to 1) in which the share that fails lies with 95 %, where ``failed`` of some ``tests`` did.

    Wilson's score interval, which holds for few tests and where none failed: Brown, Cai and DasGupta, Interval
    Estimation for a Binomial Proportion, Statistical Science 16 (2001). It takes the tests for independent.
    """
    share, spread = failed / tests, _Z**2 / tests
    middle = share + spread / 2
    half = sqrt(spread * share * (1 - share) + spread**2 / 4)
    return max(middle - half, 0.0) / (1 + spread), min((middle + half) / (1 + spread), 1.0)


def telling(tests: Sequence[GroupTest]) -> list[GroupTest]:
    """Those from which something follows: no node left, and the doctor itself was not kept from working."""
    return [test for test in tests if test.outcome not in ("lost", "unknown")]


def repeats_of(recording: Recording) -> list[GroupTest]:
    """The repeats of all ranks from which something follows."""
    fact = recording.first(RepeatsFact)
    return telling(fact.tests) if fact else []


def slowed(tests: Sequence[GroupTest], least: float) -> tuple[float, float] | None:
    """Median rates of the first and the last third (bytes a second), where that lost ``least`` (0 to 1) and more.

    What chance makes of two medians does not count.
    """
    rates = [test.bytes_per_s for test in tests if test.outcome == "passed" and test.bytes_per_s is not None]
    third = len(rates) // 3
    if third < FEWEST_REPEATS:
        return None
    first, last = rates[:third], rates[-third:]
    before, after = median(first), median(last)
    deviation = SIGMA * _OF_MEDIAN * sqrt((_mad(first) ** 2 + _mad(last) ** 2) / third)
    return (before, after) if before - after > max(DEVIATIONS * deviation, least * before) else None


def _mad(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(value - middle) for value in values)
