"""Severities that follow from a measurement, by one limit for all rules."""

from ddp_doctor.model.choices import Severity

#: An error makes a job at least so many times slower than its peers or its expectation (docs/explanation/verdicts.md).
#: Below it are an A100 2.9 times slower than its peers (NVIDIA/DCGM issue 122), and dlrover's stragglers, at 2 times.
ERROR_TIMES = 3.0


def of_slowdown(times: float) -> Severity:
    """The severity of a slowdown: ``times`` is the time by the expected time, or the expected rate by the rate."""
    return Severity.ERROR if times >= ERROR_TIMES else Severity.WARNING


def of_detour(fast: float | None, slow: float | None) -> Severity:
    """The severity of a path with the rate ``slow`` beside one with ``fast``; a cost that is not known is a warning."""
    return of_slowdown(fast / slow) if fast and slow else Severity.WARNING
