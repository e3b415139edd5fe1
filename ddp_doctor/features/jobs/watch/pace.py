"""The pace of a job, from counts of its steps: whether it fell permanently, and which rank has been last since then.

This module reads no files. A count grows with the steps, in any unit: bytes, collectives, lines.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

#: A window ends with the second sample with a higher count, so that a pause of any length is in one window.
GROWTHS_OF_WINDOW = 2
#: Minimum number of windows before a fall and in it: fewer have no useful median (judgment).
LEAST_WINDOWS = 4
#: Number of windows to keep: three hours or more, with one window per 15 s.
MOST_WINDOWS = 720
#: A pace below this share of the previous one is a fall. Below DEEP_SHARE, it is more likely another part of the job's
#: work (judgment: an evaluation that reduces a number intermittently; a lost link of eight leaves more).
FALLEN_SHARE = 0.75
DEEP_SHARE = 0.1
#: A fall must exceed three standard deviations of one window. The median of the absolute deviations (MAD) is 1 / 1.4826
#: of one for a normal distribution (Rousseeuw and Croux 1993, Alternatives to the median absolute deviation).
NOISE_MADS = 3 * 1.4826
#: Minimum share of windows on their side of the middle; the others are pauses and checkpoints (judgment).
ON_THEIR_SIDE = 0.8
#: A fall lasts if it takes half the time before it, within these bounds, and twice the time of the longest fall that
#: ended: an evaluation takes a small part of the time, and is repeated (judgment).
LASTS_SHARE = 0.5
LASTS_LEAST_S, LASTS_MOST_S, DEEP_LASTS_MOST_S = 60.0, 600.0, 1800.0
TIMES_OF_ENDED = 2.0
#: A rank is named if it was last in this share of at least LEAST_LOOKS samples with waiting ranks (as in `attach`), was
#: last at most half as often before, and waiting for it takes at least half of the additional time per step (judgment).
LAST_SHARE, LEAST_LOOKS = 0.75, 5
LAST_BEFORE_SHARE = 0.5
EXPLAINED_SHARE = 0.5


_MOST_LOOKS = 8_192


class Window(NamedTuple):
    """A time in which the count grew in two samples."""

    start_s: float  # monotonic, like all times in this module
    end_s: float
    rate: float  # of the count, per second


class Look(NamedTuple):
    """A sample: the count, whether ranks waited for others, and for which rank, if for only one."""

    at_s: float
    total: int
    waits: bool = False
    last: int | None = None


@dataclass(frozen=True)
class Fall:
    """A lasting fall: its start, its end if it is over, and the rates before and in it."""

    since_s: float
    before: float
    after: float
    until_s: float | None = None

    @property
    def is_deep(self) -> bool:
        """Return True if the rate is so low that the job may do something else."""
        return self.after < DEEP_SHARE * self.before


class LastRank(NamedTuple):
    """The rank that was last in ``times`` of ``looks`` samples with waiting ranks."""

    rank: int
    times: int
    looks: int


class Pace:
    """The pace of one count. ``fall`` is the newest lasting fall, even if it is over."""

    def __init__(self) -> None:
        self.windows: deque[Window] = deque(maxlen=MOST_WINDOWS)
        self._looks: deque[Look] = deque(maxlen=_MOST_LOOKS)
        self._start: Look | None = None  # of the open window
        self._growths = 0
        self._is_warm = False  # the first window is ignored
        self.fall: Fall | None = None

    def pause(self) -> None:
        """Discard the open window, after a time without samples."""
        self._start = None

    def begin_anew(self, at_s: float) -> None:
        """Start again with other ranks."""
        self.windows.clear()
        self._looks.clear()
        self._start, self._is_warm = None, False
        if self.fall and self.fall.until_s is None:
            self.fall = replace(self.fall, until_s=at_s)

    def add(self, look: Look) -> None:
        """Add a sample."""
        if self._start is None:
            self._start, self._growths = look, 0
        elif look.total > self._looks[-1].total:
            self._growths += 1
        self._looks.append(look)
        if self._growths < GROWTHS_OF_WINDOW:
            return
        start, self._start, self._growths = self._start, look, 0
        if self._is_warm:
            self.windows.append(Window(start.at_s, look.at_s, (look.total - start.total) / (look.at_s - start.at_s)))
            self._judge()
        self._is_warm = True

    def last_rank(self) -> LastRank | None:
        """Return the rank that was last since the fall, if the additional time per step is mainly waiting for it."""
        fall = self.fall
        if fall is None:
            return None
        end_s = fall.until_s or float("inf")
        since = [look for look in self._looks if fall.since_s <= look.at_s < end_s]
        before = [look.last for look in self._looks if look.at_s < fall.since_s]
        waits = [look.last for look in since if look.waits]
        named = Counter(last for last in waits if last is not None).most_common(1)
        if len(waits) < LEAST_LOOKS or not named or named[0][1] < LAST_SHARE * len(waits):
            return None
        rank, times = named[0]
        share, share_before = times / len(since), before.count(rank) / max(len(before), 1)
        waited, longer = share / fall.after - share_before / fall.before, 1 / fall.after - 1 / fall.before
        is_news = share_before <= LAST_BEFORE_SHARE * share
        return LastRank(rank, times, len(waits)) if is_news and waited >= EXPLAINED_SHARE * longer else None

    def _judge(self) -> None:
        fall, windows = self.fall, list(self.windows)
        if fall is None or fall.until_s is not None:
            self.fall = fall_in(windows) or fall
            return
        middle, newest = (fall.before + fall.after) / 2, windows[-LEAST_WINDOWS:]
        if newest[0].start_s >= fall.since_s and min(window.rate for window in newest) > middle:
            self.fall = replace(fall, until_s=newest[0].start_s)
            self.windows = deque(newest, maxlen=MOST_WINDOWS)
        elif since := [window.rate for window in windows if window.start_s >= fall.since_s]:
            self.fall = replace(fall, after=median(since))


def fall_in(windows: Sequence[Window]) -> Fall | None:
    """Return the fall at the end of these windows, or None if none lasts and exceeds the noise."""
    least = LEAST_WINDOWS
    if len(windows) < 2 * least:
        return None
    at = _change(windows)
    rates, later = [window.rate for window in windows[:at]], [window.rate for window in windows[at:]]
    before, after = median(rates), median(later)
    noise = max(median(abs(rate - before) for rate in rates), median(abs(rate - after) for rate in later))
    middle = (before + after) / 2
    on_their_side = min(fmean(rate > middle for rate in rates), fmean(rate < middle for rate in later))
    if (
        after > FALLEN_SHARE * before
        or before - after <= NOISE_MADS * noise
        or on_their_side < ON_THEIR_SIDE
        or max(later[-2:]) >= middle  # it is over
    ):
        return None
    fall = Fall(windows[at].start_s, before, after)
    most_s = DEEP_LASTS_MOST_S if fall.is_deep else LASTS_MOST_S
    before_s = fall.since_s - windows[0].start_s
    runs = (list(run) for is_low, run in groupby(windows[:at], lambda window: window.rate < middle) if is_low)
    ended_s = max((run[-1].end_s - run[0].start_s for run in runs), default=0.0)
    lasts_s = max(min(max(LASTS_SHARE * before_s, LASTS_LEAST_S), most_s), TIMES_OF_ENDED * ended_s)
    return fall if windows[-1].end_s - fall.since_s >= lasts_s else None


def _change(windows: Sequence[Window]) -> int:
    """Return the first window after the best split into two means (least squares), rates capped at twice the median."""
    highest = 2 * median(window.rate for window in windows)
    rates = [min(window.rate, highest) for window in windows]
    mean, size, least = fmean(rates), len(rates), LEAST_WINDOWS
    above = list(accumulate(rate - mean for rate in rates))
    return max(range(least, size - least + 1), key=lambda at: above[at - 1] / sqrt(at * (size - at)))
