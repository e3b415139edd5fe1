"""Severities that follow from a measurement, by one limit for all rules."""

from ddp_doctor.model.choices import Severity

#: An error makes a job at least this many times slower than its peers or its expectation
#: (docs/explanation/verdicts.md). Below it are an A100 2.9 times slower than its peers (NVIDIA/DCGM issue 122), and
#: dlrover's stragglers, at 2 times.
ERROR_TIMES = 3.0
#: Smallest share of a step that makes a cost a warning. Smaller costs are not faults.
WARNING_SHARE = 0.10


def of_slowdown(times: float) -> Severity:
    """Return the severity of a slowdown by ``times``: the time divided by the expected one, or a rate the other way."""
    return Severity.ERROR if times >= ERROR_TIMES else Severity.WARNING


def of_lost_share(share: float) -> Severity:
    """Return the severity of a loss of this share of the time of a step, or of a rate."""
    return of_slowdown(1 / (1 - share)) if share < 1 else Severity.ERROR


def of_detour(fast: float | None, slow: float | None) -> Severity:
    """Return the severity of a path with the rate ``slow`` instead of ``fast``. An unknown cost is a warning."""
    return of_slowdown(fast / slow) if fast and slow else Severity.WARNING
