"""The processes that print into a file, and with which lines they and the whole file end."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ddp_doctor.features.jobs.facts import LogLine
from ddp_doctor.features.jobs.reading.conclusion import conclusion
from ddp_doctor.features.jobs.reading.prefix import LONGEST_PREFIX, Origin, Prefixes, clean
from ddp_doctor.features.jobs.reading.words import AFTER, search_for

#: How the watcher begins its lines, which quote and explain and are no words of the job's.
OWN = b"ddp-doctor: "
#: Lines of a chunk that are looked at, from its end.
_MOST_LINES = 20_000
_MOST_STREAMS = 20_000
#: Lines from the end that are searched for a good end and for steps.
_LAST_LINES = 500
#: NCCL prepares communication, or has made a communicator: it continued after what it warned of before.
_GOES_ON = re.compile(
    r"NCCL INFO (?:Channel \d+(?:/\d+)? ?: \d+\[|Connected all|Using network |Trees \[|.{1,300} - Init COMPLETE)"
)
#: Streams of lines without a prefix that tells processes apart.
OF_ANYBODY = frozenset(("", "time "))
#: What follows a failure and is still of it: stacks of Python, of C++ and of the system, and where they are cut.
_OF_STACK = re.compile(
    r'\s*(?:frame #\d+: |#\d+ +(?:0x|<)|File "[^"]{1,400}", line \d|[~^]{2,}$|\.\.\. \d+ lines|Extension modules?: '
    r"|<omitting |(?:Current thread|Thread) 0x|\*\*\* (?:Aborted|Process|Signal|End of error)|@ +0x[0-9a-f]+"
    r"|\[[\w.-]{1,100}:\d+\] \[ ?\d+\] |\S{1,300}\(\S{0,300}\+?0x[0-9a-f]+\) ?\[0x)"
)


@dataclass
class Stream:
    """Those lines of a file that have the same prefix: of one process, or of several where there is none."""

    origin: Origin
    last: LogLine | None = None
    last_at_s: float | None = None


class Ends:
    """The streams of one file; ``where`` makes a line that is kept of a text and its number."""

    def __init__(self, prefixes: Prefixes, where: Callable[[str, int], LogLine]) -> None:
        self.streams: dict[str, Stream] = {}
        self.of_rank: dict[int, tuple[LogLine, float | None]] = {}
        self.said: int | None = None  # number of the last line that is no part of a stack
        self.good_end: LogLine | None = None
        self.is_finished = False
        self.stops = False  # the file ends with the last step
        self.last_step: LogLine | None = None  # if steps continue to the end
        self.unusual: LogLine | None = None  # the last line about a fault, or the last line of the file
        self.nan_since: LogLine | None = None  # from there on every loss is NaN or infinite
        #: The last line about NCCL preparing communication, by host and pid.
        self.nccl_goes_on: dict[tuple[str | None, int], int] = {}
        self._left = _LAST_LINES
        self._tail: list[tuple[int, str]] = []  # the last lines, the last first
        self._prefixes = prefixes
        self._where = where

    def note(self, origin: Origin) -> bool:
        """Take who printed a line; says whether that is somebody new."""
        known = self.streams.get(origin.stream)
        if known is None:
            if len(self.streams) >= _MOST_STREAMS:
                return False
            self.streams[origin.stream] = Stream(Origin() if origin.stream in OF_ANYBODY else origin)
            return True
        if known.origin.rank is None and origin.rank is not None and origin.stream not in OF_ANYBODY:
            known.origin = origin
        return False

    def look(self, chunks_from_the_end: Iterable[bytes], lines: int) -> None:
        """Find the last line of each stream. Chunks of whole lines, the last first; no more are taken than are needed.

        In the first two, and the last lines, each line is looked at; before them only where the prefix of a missing
        stream stands.
        """
        for index, chunk in enumerate(chunks_from_the_end):
            raw_lines = chunk.removesuffix(b"\n").split(b"\n")
            if index < 2 or self._left:
                first = max(len(raw_lines) - _MOST_LINES, 0)
                rows: Iterable[int] = range(len(raw_lines) - 1, first - 1, -1)
            else:
                missing = {name for name, stream in self.streams.items() if stream.last is None} - OF_ANYBODY
                if not missing:
                    break
                rows = _rows_with(tuple(name.removeprefix("time ").encode() for name in missing), chunk)
            for row in rows:
                self._line(raw_lines[row], lines - len(raw_lines) + 1 + row)
            lines -= len(raw_lines)
            if not self._left and all(stream.last for stream in self.streams.values()):
                break
        texts, seen = dict(self._tail), conclusion(self._tail)
        self.is_finished, self.stops = seen.is_finished, seen.stops
        self.good_end, self.last_step, self.unusual, self.nan_since = (
            None if number is None else self._where(texts[number], number)
            for number in (seen.good_end, seen.last_step, seen.unusual, seen.nan_since)
        )

    def _line(self, raw: bytes, number: int) -> None:
        raw = raw.rstrip()
        if not raw or OWN in raw[:LONGEST_PREFIX]:
            return
        last = clean(raw[max(raw.rfind(b"\r") + 1, len(raw) - AFTER) :])
        head = clean(raw[:LONGEST_PREFIX])
        origin, text = self._prefixes.split(head)
        prefix = head[: len(head) - len(text)]
        _, text = self._prefixes.split(last if last.startswith(prefix) else prefix + last)
        self.note(origin)
        if not text.strip():
            return
        if len(self._tail) < _LAST_LINES and not _OF_STACK.match(text):
            self._tail.append((number, text))
        if origin.pid is not None and _GOES_ON.search(text):
            self.nccl_goes_on.setdefault((origin.host, origin.pid), number)
        self._left = max(self._left - 1, 0)
        if self.said is None and not _OF_STACK.match(text):
            self.said = number
        stream = self.streams.get(origin.stream)
        if stream is not None and stream.last is None:
            stream.last, stream.last_at_s = self._where(text, number), origin.at_s
        if origin.rank is not None and origin.rank not in self.of_rank:
            self.of_rank[origin.rank] = (self._where(text, number), origin.at_s)


def _rows_with(prefixes: tuple[bytes, ...], chunk: bytes) -> Iterable[int]:
    """The last line with each prefix, as numbers of lines in the chunk."""
    last = {word: start for word, start, _ in search_for(prefixes)(chunk)}
    return sorted({chunk.count(b"\n", 0, start) for start in last.values()}, reverse=True)
