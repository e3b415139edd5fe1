"""Lines that are printed again and again, one or several in turns: where so many are alike, few have to be read."""

from typing import NamedTuple

#: So many lines of a chunk are read in any case: texts of several lines have ended by then.
_READ_LINES = 512
#: Bytes that are compared first, and at most at once.
_FIRST_BYTES, _MOST_BYTES = 256, 1 << 16


class Skip(NamedTuple):
    """How often a part of a chunk stands there again, which need not be read."""

    times: int
    size: int  # bytes of the part
    lines: int


class Repeats:
    """Looks at the lines of one chunk that are read, in order, for a part that repeats."""

    def __init__(self, chunk: bytes) -> None:
        self._chunk = chunk
        self._read = 0
        self._last: dict[bytes, int] = {}  # where each line stood last

    def skip(self, at: int, end: int) -> Skip | None:
        """How much may be left out before the line at ``at``; the last two rounds are read."""
        self._read += 1
        if self._read < _READ_LINES:
            return None
        line = self._chunk[at:end]
        before = self._last.get(line)
        self._last[line] = at
        if before is None:
            return None
        size = at - before
        times = self._same(at, size) // size - 2
        if times < 2:
            return None
        self._last.clear()
        return Skip(times, size, self._chunk.count(b"\n", before, at))

    def _same(self, at: int, size: int) -> int:
        """How many bytes from there on equal those ``size`` bytes before."""
        same, step, grows = 0, _FIRST_BYTES, True
        while grows or step >= size:
            start, stop = at + same, at + same + step
            if stop <= len(self._chunk) and self._chunk[start:stop] == self._chunk[start - size : stop - size]:
                same += step
                step = min(step * 2, _MOST_BYTES) if grows else step
            else:
                grows, step = False, step // 2
        return same
