"""Sets of times as sorted intervals that do not touch each other."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from operator import sub

Interval = tuple[float, float]


class Times:
    """A set of moments. Immutable."""

    def __init__(self, begins: Sequence[float] = (), ends: Sequence[float] = ()) -> None:
        self.begins, self.ends = begins, ends

    @classmethod
    def union(cls, *intervals: Iterable[Interval]) -> "Times":
        """Return the union of intervals."""
        every = sorted(interval for some in intervals for interval in some)
        begins, ends = list[float](), list[float]()
        for begin, end in every:
            if ends and begin <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            elif end > begin:
                begins.append(begin)
                ends.append(end)
        return cls(begins, ends)

    def __iter__(self) -> Iterator[Interval]:
        return zip(self.begins, self.ends, strict=True)

    def __or__(self, other: "Times") -> "Times":
        return Times.union(self, other)

    def __sub__(self, other: "Times") -> "Times":
        if len(other.begins) < len(self.begins):
            around = zip((-inf, *other.ends), (*other.begins, inf), strict=True)
            parts = (self.within(begin, end) for begin, end in around)
        else:
            parts = (other.within(begin, end).outside(begin, end) for begin, end in self)
        begins, ends = list[float](), list[float]()
        for part in parts:
            begins += part.begins
            ends += part.ends
        return Times(begins, ends)

    def outside(self, begin: float, end: float) -> "Times":
        """Return the time between two moments that is not in the set, which must be within them."""
        spans = [span for span in zip((begin, *self.ends), (*self.begins, end), strict=True) if span[0] < span[1]]
        return Times([first for first, _ in spans], [last for _, last in spans])

    def __and__(self, other: "Times") -> "Times":
        return self - (self - other) if other.begins else other

    def within(self, begin: float, end: float) -> "Times":
        """Return the part between two moments."""
        first, last = bisect_right(self.ends, begin), bisect_left(self.begins, end)
        if first >= last:
            return Times()
        begins, ends = list(self.begins[first:last]), list(self.ends[first:last])
        begins[0], ends[-1] = max(begins[0], begin), min(ends[-1], end)
        return Times(begins, ends)

    @property
    def total(self) -> float:
        """The total length of the set."""
        return float(sum(map(sub, self.ends, self.begins)))  # sums of absolute times would lose whole microseconds
