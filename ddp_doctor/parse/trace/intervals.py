"""Sets of times as sorted intervals that do not touch each other."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import sub

Interval = tuple[float, float]


class Times:
    """A set of moments. Immutable."""

    def __init__(self, begins: Sequence[float] = (), ends: Sequence[float] = ()) -> None:
        self.begins, self.ends = begins, ends

    @classmethod
    def union(cls, *intervals: Iterable[Interval]) -> "Times":
        """What any of these covers."""
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
        if not other.begins or not self.begins:
            return self
        begins, ends = list[float](), list[float]()
        at, holes = 0, len(other.begins)
        for start, end in self:
            begin = start
            while at < holes and other.ends[at] <= begin:
                at += 1
            hole = at
            while hole < holes and other.begins[hole] < end:
                if other.begins[hole] > begin:
                    begins.append(begin)
                    ends.append(other.begins[hole])
                begin = max(begin, other.ends[hole])
                hole += 1
            if begin < end:
                begins.append(begin)
                ends.append(end)
        return Times(begins, ends)

    def __and__(self, other: "Times") -> "Times":
        return self - (self - other) if other.begins else other

    def within(self, begin: float, end: float) -> "Times":
        """The part between two moments."""
        first, last = bisect_right(self.ends, begin), bisect_left(self.begins, end)
        if first >= last:
            return Times()
        begins, ends = list(self.begins[first:last]), list(self.ends[first:last])
        begins[0], ends[-1] = max(begins[0], begin), min(ends[-1], end)
        return Times(begins, ends)

    @property
    def total(self) -> float:
        """How long all of it is."""
        return sum(map(sub, self.ends, self.begins))  # sums of absolute times would lose whole microseconds
