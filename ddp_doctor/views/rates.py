"""Tests that were repeated: how often they fail, and whether they become slower."""

from collections.abc import Sequence
from math import sqrt
from statistics import median

from ddp_doctor.facts.collectives import GroupTest, RepeatsFact
from ddp_doctor.knowledge.baselines import DEVIATIONS, SIGMA
from ddp_doctor.knowledge.thresholds import FEWEST_REPEATS
from ddp_doctor.model.recording import Recording

#: The quantile of the normal distribution for an interval of 95%.
_Z = 1.959964
#: The standard error of a median of normally distributed values, divided by the error of a mean: sqrt(pi / 2).
_OF_MEDIAN = 1.2533
FAILED = ("failed", "hung", "wrong")


def wilson(failed: int, tests: int) -> tuple[float, float]:
    """Return the 95% interval (0 to 1) of the failure rate if ``failed`` of ``tests`` failed.

    Wilson's score interval, which is valid for few tests and for no failures: Brown, Cai and DasGupta, Interval
    Estimation for a Binomial Proportion, Statistical Science 16 (2001). It assumes independent tests.
    """
    share, spread = failed / tests, _Z**2 / tests
    middle = share + spread / 2
    half = sqrt(spread * share * (1 - share) + spread**2 / 4)
    return max(middle - half, 0.0) / (1 + spread), min((middle + half) / (1 + spread), 1.0)


def telling(tests: Sequence[GroupTest]) -> list[GroupTest]:
    """Return the conclusive tests: no node left, and ddp-doctor itself could work."""
    return [test for test in tests if test.outcome not in ("lost", "unknown")]


def repeats_of(recording: Recording) -> list[GroupTest]:
    """Return the conclusive repeats of all ranks."""
    fact = recording.first(RepeatsFact)
    return telling(fact.tests) if fact else []


def slowed(tests: Sequence[GroupTest], least: float) -> tuple[float, float] | None:
    """Return the median rates of the first and last third (bytes per second) if the loss is above ``least`` (0 to 1).

    Differences of medians that may be chance do not count.
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
