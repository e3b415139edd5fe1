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

#: A window ends with the second look at which the count had grown, so that a pause, however long, is in one window.
GROWTHS_OF_WINDOW = 2
#: Before a fall and in it: fewer have no median worth the name (judgment).
LEAST_WINDOWS = 4
#: What is kept of a job: three hours and more, at a window in 15 s.
MOST_WINDOWS = 720
#: Less than this of the pace before is a fall; less than DEEP more likely another part of the job's work (judgment:
#: an evaluation that reduces a number now and then; a lost link of eight leaves more).
FALLEN_SHARE = 0.75
DEEP_SHARE = 0.1
#: The fall is beyond noise at three standard deviations of one window, of which the median of the deviations (MAD) is
#: 1 / 1.4826 where they are normal (Rousseeuw and Croux 1993, Alternatives to the median absolute deviation).
NOISE_MADS = 3 * 1.4826
#: So many windows are on their side of the middle; the others are pauses and checkpoints (judgment).
ON_THEIR_SIDE = 0.8
#: A fall lasts if it goes on for half the time before it, within these bounds, and for twice the longest that ended:
#: an evaluation takes a small part of the time, and comes again (judgment).
LASTS_SHARE = 0.5
LASTS_LEAST_S, LASTS_MOST_S, DEEP_LASTS_MOST_S = 60.0, 600.0, 1800.0
TIMES_OF_ENDED = 2.0
#: A rank is named that came last in this share of at least so many looks in which others waited, as in `attach`; at
#: most half as often before; and for which they wait for at least half of what a step takes longer (judgment).
LAST_SHARE, LEAST_LOOKS = 0.75, 5
LAST_BEFORE_SHARE = 0.5
EXPLAINED_SHARE = 0.5


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
        return self.after < DEEP_SHARE * self.before


class LastRank(NamedTuple):
    """The rank that came last ``times`` in ``looks`` at ranks that waited."""

    rank: int
    times: int
    looks: int


class Pace:
    """Follows one count. ``fall`` is the newest that lasted, over or not."""

    def __init__(self) -> None:
        self.windows: deque[Window] = deque(maxlen=MOST_WINDOWS)
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
        if self._growths < GROWTHS_OF_WINDOW:
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
    """The fall that goes on at the end of these, if there is one that lasts and is beyond noise."""
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
    """The first window after the place where two means fit best (least squares); single high ones count as twice."""
    highest = 2 * median(window.rate for window in windows)
    rates = [min(window.rate, highest) for window in windows]
    mean, size, least = fmean(rates), len(rates), LEAST_WINDOWS
    above = list(accumulate(rate - mean for rate in rates))
    return max(range(least, size - least + 1), key=lambda at: above[at - 1] / sqrt(at * (size - at)))
