"""Tests that were repeated: how often they fail."""

from math import sqrt

#: The quantile of the normal distribution for an interval of 95 %.
_Z = 1.959964
FAILED = ("failed", "hung", "wrong")


def wilson(failed: int, tests: int) -> tuple[float, float]:
    """The interval (0 to 1) in which the share that fails lies with 95 %, where ``failed`` of some ``tests`` did."""
    share, spread = failed / tests, _Z**2 / tests
    middle = share + spread / 2
    half = sqrt(spread * share * (1 - share) + spread**2 / 4)
    return max(middle - half, 0.0) / (1 + spread), min((middle + half) / (1 + spread), 1.0)
