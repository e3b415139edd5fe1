"""The pace of a job: counts of its steps in, and out comes whether it fell for good, and which rank came last since.

Nothing is read here. A count grows with the steps, in whatever unit: bytes, collectives, lines.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

from ddp_doctor.features.jobs.watch import slow_jobs

_MOST_LOOKS = 8_192


class Window(NamedTuple):
    """A time in which the count grew in two looks."""

    start_s: float  # monotonic, as all times here
    end_s: float
    rate: float  # of the count, a second


class Look(NamedTuple):
    """The count at a moment, whether ranks waited for others then, and for whom, if for one alone."""

    at_s: float
    total: int
    waits: bool = False
    last: int | None = None


@dataclass(frozen=True)
class Fall:
    """A lasting one: from when, until when if it is over, and the rates before it and in it."""

    since_s: float
    before: float
    after: float
    until_s: float | None = None

    @property
    def is_deep(self) -> bool:
        """Whether so little is left that the job may do something else."""
        return self.after < slow_jobs.DEEP_SHARE * self.before


class LastRank(NamedTuple):
    """The rank that came last ``times`` in ``looks`` at ranks that waited."""

    rank: int
    times: int
    looks: int


class Pace:
    """Follows one count. ``fall`` is the newest that lasted, over or not."""

    def __init__(self) -> None:
        self.windows: deque[Window] = deque(maxlen=slow_jobs.MOST_WINDOWS)
        self._looks: deque[Look] = deque(maxlen=_MOST_LOOKS)
        self._start: Look | None = None  # of the window that is open
        self._growths = 0
        self._is_warm = False  # the first window is not looked at
        self.fall: Fall | None = None

    def pause(self) -> None:
        """Nobody has looked for a time: the window that is open tells nothing."""
        self._start = None

    def begin_anew(self, at_s: float) -> None:
        """The ranks are others from now on."""
        self.windows.clear()
        self._looks.clear()
        self._start, self._is_warm = None, False
        if self.fall and self.fall.until_s is None:
            self.fall = replace(self.fall, until_s=at_s)

    def add(self, look: Look) -> None:
        """What was seen at a look."""
        if self._start is None:
            self._start, self._growths = look, 0
        elif look.total > self._looks[-1].total:
            self._growths += 1
        self._looks.append(look)
        if self._growths < slow_jobs.GROWTHS_OF_WINDOW:
            return
        start, self._start, self._growths = self._start, look, 0
        if self._is_warm:
            self.windows.append(Window(start.at_s, look.at_s, (look.total - start.total) / (look.at_s - start.at_s)))
            self._judge()
        self._is_warm = True

    def last_rank(self) -> LastRank | None:
        """Who came last since the fall, if the waiting for it is most of what a step takes longer."""
        fall = self.fall
        if fall is None:
            return None
        end_s = fall.until_s or float("inf")
        since = [look for look in self._looks if fall.since_s <= look.at_s < end_s]
        before = [look.last for look in self._looks if look.at_s < fall.since_s]
        waits = [look.last for look in since if look.waits]
        named = Counter(last for last in waits if last is not None).most_common(1)
        if len(waits) < slow_jobs.LEAST_LOOKS or not named or named[0][1] < slow_jobs.LAST_SHARE * len(waits):
            return None
        rank, times = named[0]
        share, share_before = times / len(since), before.count(rank) / max(len(before), 1)
        waited, longer = share / fall.after - share_before / fall.before, 1 / fall.after - 1 / fall.before
        is_news = share_before <= slow_jobs.LAST_BEFORE_SHARE * share
        return LastRank(rank, times, len(waits)) if is_news and waited >= slow_jobs.EXPLAINED_SHARE * longer else None

    def _judge(self) -> None:
        fall, windows = self.fall, list(self.windows)
        if fall is None or fall.until_s is not None:
            self.fall = fall_in(windows) or fall
            return
        middle, newest = (fall.before + fall.after) / 2, windows[-slow_jobs.LEAST_WINDOWS :]
        if newest[0].start_s >= fall.since_s and min(window.rate for window in newest) > middle:
            self.fall = replace(fall, until_s=newest[0].start_s)
            self.windows = deque(newest, maxlen=slow_jobs.MOST_WINDOWS)
        elif since := [window.rate for window in windows if window.start_s >= fall.since_s]:
            self.fall = replace(fall, after=median(since))


def fall_in(windows: Sequence[Window]) -> Fall | None:
    """The fall that goes on at the end of these, if there is one that lasts and is beyond noise."""
    least = slow_jobs.LEAST_WINDOWS
    if len(windows) < 2 * least:
        return None
    at = _change(windows)
    rates, later = [window.rate for window in windows[:at]], [window.rate for window in windows[at:]]
    before, after = median(rates), median(later)
    noise = max(median(abs(rate - before) for rate in rates), median(abs(rate - after) for rate in later))
    middle = (before + after) / 2
    on_their_side = min(fmean(rate > middle for rate in rates), fmean(rate < middle for rate in later))
    if (
        after > slow_jobs.FALLEN_SHARE * before
        or before - after <= slow_jobs.NOISE_MADS * noise
        or on_their_side < slow_jobs.ON_THEIR_SIDE
        or max(later[-2:]) >= middle  # it is over
    ):
        return None
    fall = Fall(windows[at].start_s, before, after)
    most_s = slow_jobs.DEEP_LASTS_MOST_S if fall.is_deep else slow_jobs.LASTS_MOST_S
    before_s = fall.since_s - windows[0].start_s
    runs = (list(run) for is_low, run in groupby(windows[:at], lambda window: window.rate < middle) if is_low)
    ended_s = max((run[-1].end_s - run[0].start_s for run in runs), default=0.0)
    lasts_s = max(
        min(max(slow_jobs.LASTS_SHARE * before_s, slow_jobs.LASTS_LEAST_S), most_s), slow_jobs.TIMES_OF_ENDED * ended_s
    )
    return fall if windows[-1].end_s - fall.since_s >= lasts_s else None


def _change(windows: Sequence[Window]) -> int:
    """The first window after the place where two means fit best (least squares); single high ones count as twice."""
    highest = 2 * median(window.rate for window in windows)
    rates = [min(window.rate, highest) for window in windows]
    mean, size, least = fmean(rates), len(rates), slow_jobs.LEAST_WINDOWS
    above = list(accumulate(rate - mean for rate in rates))
    return max(range(least, size - least + 1), key=lambda at: above[at - 1] / sqrt(at * (size - at)))
