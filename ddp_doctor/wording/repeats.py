"""Texts about failure rates and the times of a run."""

from collections.abc import Sequence
from datetime import timedelta

from ddp_doctor.facts.collectives import GroupTest
from ddp_doctor.views.rates import FAILED, telling, wilson

_HOUR_S = 3600


def percent(share: float) -> str:
    """Return ``7.5`` for 0.075, ``20`` for 0.2: two digits."""
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"


def failures(tests: Sequence[GroupTest]) -> str:
    """Return ``3 failed (7.5%, 2.6 to 20%)``, with the interval of ``wilson``, or ``none failed``."""
    told, failed = len(telling(tests)), sum(test.outcome in FAILED for test in tests)
    if not failed:
        return "none failed"
    low, high = wilson(failed, told)
    return f"{failed} failed ({percent(failed / told)}%, {percent(low)} to {percent(high)}%)"


def none_failed(tests: Sequence[GroupTest]) -> str:
    """Return ``no failure in 40 repeats: failure rate below 8.8% (95% interval)``.

    Inconclusive repeats may have been failures.
    """
    told = len(telling(tests))
    silent = len(tests) - told
    beside = f" and {silent} inconclusive" if silent else ""
    most = percent(wilson(silent, len(tests))[1])
    return f"no failure in {told} repeats{beside}: failure rate below {most}% (95% interval)"


def clock(seconds: float) -> str:
    """Return ``00:41``, ``2:03:00``."""
    whole = timedelta(seconds=round(seconds))
    return f"{whole}" if seconds >= _HOUR_S else f"{whole}"[2:]
