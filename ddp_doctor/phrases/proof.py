"""What was tried to prove a remedy, in words: "0.39 GB/s (median of 5, 0.38 to 0.40)"."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from ddp_doctor.model.experiment import Attempt
from ddp_doctor.model.finding import Showing

NOTHING_DONE = "there was no time for a trial"
NO_GAIN = "it makes no difference"
UNCLEAR = "it was tried, and the trials lie too close together to tell"
COMES_AND_GOES = "it was tried, and without it some trials passed as well"
AS_FOUND = "as found"


def rate(bytes_per_s: float) -> str:
    """``1.18 GB/s``, ``12 MB/s``."""
    if bytes_per_s >= 1e8:
        return f"{bytes_per_s / 1e9:.{1 if bytes_per_s >= 1e10 else 2}f} GB/s"
    return f"{bytes_per_s / 1e6:.{0 if bytes_per_s >= 1e7 else 2}f} MB/s"


def outcome(attempts: Sequence[Attempt]) -> str:
    """What the trials of one kind came to; empty where there were none."""
    passed = [one for one in attempts if one.outcome == "passed"]
    if attempts and len(passed) == len(attempts):
        return _passed([one.bytes_per_s for one in passed if one.bytes_per_s is not None], len(passed))
    ends = Counter(_end(one) for one in attempts)
    several = len(attempts) > 1
    return ", ".join(
        f"{end}{f' ({times} of {len(attempts)})' if several else ''}" for end, times in ends.items()
    )


def _passed(rates: Sequence[float], trials: int) -> str:
    if not rates:
        return f"passes ({trials} of {trials})" if trials > 1 else "passes"
    if len(rates) == 1:
        return rate(rates[0])
    return f"{rate(median(rates))} (median of {len(rates)}, {rate(min(rates))} to {rate(max(rates))})"


def _end(one: Attempt) -> str:
    if one.outcome == "hung":
        return f"no end in {one.duration_s:.1f} s"
    return f"fails: {one.reason}" if one.outcome == "failed" else "passes"


def price(showing: Showing, bytes_per_s: float) -> str | None:
    """What the remedy costs against those without the fault; None where they were not measured."""
    healthy = showing.healthy_bytes_per_s
    if not healthy or bytes_per_s >= healthy:
        return None
    percent = 100 * (1 - bytes_per_s / healthy)
    return f"{percent:.0f} % slower than {showing.healthy or 'without the fault'} ({rate(healthy)})"


def not_read(names: Iterable[str]) -> str:
    """Why a trial that went well proves nothing."""
    return f"it was tried, and NCCL's log does not say that it read {', '.join(sorted(names))}"
