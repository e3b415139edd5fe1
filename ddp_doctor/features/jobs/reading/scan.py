"""One pass over a file's bytes, which skips lines without any word of a sign."""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddp_doctor.features.jobs.facts import LogLine
from ddp_doctor.features.jobs.reading import endings
from ddp_doctor.features.jobs.reading.blocks import (
    FRAME_WORD,
    RAS_WORD,
    STACK,
    TRACEBACK,
    Block,
    Failure,
    Ras,
    SignBlock,
    Traceback,
    begins_within_a_traceback,
)
from ddp_doctor.features.jobs.reading.endings import Ending, JobFacts
from ddp_doctor.features.jobs.reading.ends import OWN, Ends
from ddp_doctor.features.jobs.reading.measured import TABLE_WORDS, Table
from ddp_doctor.features.jobs.reading.nccl_lines import NCCL_WORDS, NcclLines
from ddp_doctor.features.jobs.reading.prefix import LONGEST_PREFIX, Origin, Prefixes, clean
from ddp_doctor.features.jobs.reading.ras import text_of_ras
from ddp_doctor.features.jobs.reading.runs import RUN_WORDS, Runs
from ddp_doctor.features.jobs.reading.words import AFTER, BEFORE, pieces
from ddp_doctor.features.jobs.table import SIGNS
from ddp_doctor.features.jobs.table.signs import RAS_NOTE, TEST_BEGINS, Sign
from ddp_doctor.parse.redact import masked

#: Lines of a chunk that are always read: multi-line texts have ended by then.
_READ_LINES = 512
#: The number of bytes compared first, and the maximum compared at once.
_FIRST_BYTES, _MOST_BYTES = 256, 1 << 16


class Skip(NamedTuple):
    """The repetitions of a part of a chunk, which need not be read."""

    times: int
    size: int  # bytes of the part
    lines: int


class Repeats:
    """A search for repeated parts among the lines of one chunk that are read, in order."""

    def __init__(self, chunk: bytes) -> None:
        self._chunk = chunk
        self._read = 0
        self._last: dict[bytes, int] = {}  # last position of each line

    def skip(self, at: int, end: int) -> Skip | None:
        """Return what may be skipped before the line at ``at``, or None. The last two repetitions are read."""
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
        """Count the bytes from ``at`` on that equal those ``size`` bytes before."""
        same, step, grows = 0, _FIRST_BYTES, True
        while grows or step >= size:
            start, stop = at + same, at + same + step
            if stop <= len(self._chunk) and self._chunk[start:stop] == self._chunk[start - size : stop - size]:
                same += step
                step = min(step * 2, _MOST_BYTES) if grows else step
            else:
                grows, step = False, step // 2
        return same


#: Maximum number of characters kept of a line.
LONGEST_TEXT = 400
#: A multi-line text has ended if its process printed nothing in this many lines of the file.
_LONGEST_GAP = 4_096
#: Maximum number of different texts kept for one file and sign. Further ones are counted with the last.
_MOST_OF_A_SIGN = 5_000
#: Maximum number of open blocks of one process.
_MOST_BLOCKS = 8
_LONGEST_VALUE = 20 * LONGEST_TEXT
#: A logger's level in front of a traceback that its program only reports, or the name of an actor that is not a rank.
_LOGGED = re.compile(
    r"(?:^|[\]: ])(?:[DIW]\d{4} |\[?(?:DEBUG|INFO|WARNING)\b)"
    r"|^\((?:TrainController|PlacementGroupCleaner|PreemptionWatcher|raylet|gcs_server|autoscaler)\b"
)
#: Maximum number of lines in which all ranks of a job print why they did not start.
_LINES_OF_A_START = 100
#: A count never has this many digits.
_NO_NUMBER = re.compile(r"-?\d{19}")
#: At the start, each line is read to learn who prints into the file, until this many lines show no new process.
_SAME_AGAIN = 300
_LONGEST_HEAD = 20_000

_OTHERS: dict[bytes, str] = {
    **dict.fromkeys(endings.FACT_WORDS, "fact"),
    **dict.fromkeys(NCCL_WORDS, "nccl"),
    **dict.fromkeys(endings.ENDING_WORDS, "ending"),
    **dict.fromkeys(TABLE_WORDS, "measured"),
    TRACEBACK.encode(): "traceback",
    STACK.encode(): "traceback",
    FRAME_WORD: "frame",
    endings.SUMMARY_WORD: "summary",
    endings.EXIT_WORD: "exit",
    RAS_WORD.encode(): "ras",
    **dict.fromkeys(RUN_WORDS, "run"),
}
_SIGNS: dict[bytes, list[str]] = {}
for _sign, _ in SIGNS.values():
    for _word in _sign.words if not _sign.unless else ():
        _SIGNS.setdefault(_word.encode(), []).append(_sign.id)
    for _word in (*_sign.words, *_sign.unless) if _sign.unless else ():
        _OTHERS.setdefault(_word.encode(), "last")
_SIGNS.pop(TRACEBACK.encode(), None)  # it is read as a block, for the sign "exception"
_OF_ENDLESS_TESTS = _SIGNS.pop(TEST_BEGINS.encode())
_OF_RAS = _SIGNS[RAS_NOTE.encode()]
#: All words, and the uses of each by its number.
ALL_WORDS = tuple(dict.fromkeys((*_SIGNS, *_OTHERS)))
_USES = [(_SIGNS.get(word, ()), _OTHERS.get(word)) for word in ALL_WORDS]
_NCCL = {number for number, (_, use) in enumerate(_USES) if use == "nccl"}
#: Words that alone do not make a line worth reading.
_APART = {number for number, (signs, use) in enumerate(_USES) if use in ("nccl", "last") and not signs}
#: The words of signs whose last occurrence in a file counts, and words that must not follow them.
_LAST = {
    sign.id: [{ALL_WORDS.index(word.encode()) for word in words} for words in (sign.words, sign.unless)]
    for sign, _ in SIGNS.values()
    if sign.unless
}
_PATTERNS = {sign.id: re.compile(sign.pattern) for sign, _ in SIGNS.values()}


#: Multi-line texts, by the use of the word that they begin with.
_BLOCKS: dict[str | None, Callable[[int, str], Block]] = {
    "summary": Failure,
    "exit": lambda number, text: SignBlock(number, 2, text),
    "ras": Ras,
}


#: What the lines before the first occurrence of a sign show, by its tier.
_BEFORE_SIGN = {"watchdog": endings.before_time_out, "nccl": endings.since_complete}


@dataclass
class Seen:
    """A sign of one process. ``origin`` is from the prefixes of its first line."""

    sign: str
    where: LogLine
    origin: Origin
    values: dict[str, str] = field(default_factory=dict)
    times: int = 1
    last_line: int = 0


def _process(origin: Origin) -> tuple[object, ...]:
    return origin.rank, origin.host, origin.pid, origin.stream


class FileScan:
    """The facts from one file's lines. Feed it chunks of whole lines, and the words found in them, in order."""

    def __init__(self, name: str, year: int) -> None:
        self.name = name
        self.lines = 0
        self.seen: dict[tuple[object, ...], Seen] = {}
        self.endings: dict[tuple[Ending, int], LogLine] = {}  # by torchrun's attempt: the last such line
        self.facts = JobFacts()
        self.nccl = NcclLines()
        self.measured = Table()
        self.numbered = 0  # lines of the head that begin with a number such as srun's
        self.kernel = 0  # lines of the head from the kernel
        self.head = 0  # lines at the start that were all read
        self._prefixes = Prefixes(year)
        self.ends = Ends(self._prefixes, self.where)
        self.streams = self.ends.streams
        self._nothing_new = 0
        self._restarts = 0  # restarts by torchrun and ends of runs, so far
        self._runs = Runs()
        self._clock_s = 0.0  # of the last line that had one
        self._last_ending: tuple[Ending | None, int] = None, 0
        #: Lines that repeat what is kept, by sign, text and process.
        self._again: dict[tuple[object, ...], Seen] = {}
        self._counts = 1, 0  # how often each line counts, up to a line number, because equal lines were skipped
        self._ras: list[tuple[int, str]] = []  # lines of all answers, with their numbers
        self._open: dict[str, list[Block]] = {}
        self._kept: dict[str, int] = {}
        self._at = b"", 0  # the chunk, and the end of the current line in it
        self._last_signs: dict[str, tuple[str, int]] = {}  # line and its number
        self._within_line = False  # whether the last chunk ended within a line

    def feed(self, chunk: bytes, found: Sequence[tuple[int, int, int]]) -> None:
        """Take the next chunk. It ends with a line end, unless a line is longer than a chunk or it is the last."""
        first = self.lines + (not self._within_line)
        self.nccl.lines(chunk, (start for word, start, _ in found if word in _NCCL), first)
        self.nccl.channels(chunk)
        self._note_last_signs(chunk, found)
        found = [hit for hit in found if hit[0] not in _APART]
        number, at, next_found = first, 0, 0
        repeats = Repeats(chunk)
        while at < len(chunk):
            if not self._open and not self._is_head():
                while next_found < len(found) and found[next_found][1] < at:
                    next_found += 1
                if next_found == len(found):
                    break
                start = max(chunk.rfind(b"\n", at, found[next_found][1]) + 1, at)
                number += chunk.count(b"\n", at, start)
                at = start
            end = chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            if skip := repeats.skip(at, end):
                at, number = at + skip.times * skip.size, number + skip.times * skip.lines
                end += skip.times * skip.size
                next_found = bisect_left(found, at, lo=next_found, key=lambda hit: hit[1])
                self._leave_out(skip, number)
            first = next_found
            while next_found < len(found) and found[next_found][1] < end:
                next_found += 1
            self._line(chunk, at, end, number, found[first:next_found])
            at, number = end + 1, number + 1
        self._within_line = not chunk.endswith(b"\n")
        self.lines = number - 1
        if at < len(chunk):
            self.lines += chunk.count(b"\n", at) + self._within_line

    def end(self) -> None:
        """Close open blocks at the end of the file."""
        for stream in list(self._open):
            for block in self._open.pop(stream):
                self._close(block, self.streams[stream].origin)
        answers = "\n".join(text for _, text in self._ras)
        noted = [] if RAS_NOTE in answers else text_of_ras(answers.encode()).split("\n")
        for (number, _), line in zip(self._ras, noted, strict=False):
            for sign in _OF_RAS if RAS_NOTE in line else ():
                self._sign(SIGNS[sign][0], Origin(), line, line, number)
        for sign in _OF_ENDLESS_TESTS if self.measured.begun else ():
            if sign == "test-without-end" or not self.measured.rows:
                self._keep(sign, Origin(), self.where(TEST_BEGINS, self.measured.begun_at), {})
        if (end := self._runs.is_over(self._last_exception, len(self.streams))) is not None:
            self._begin_run(max(end, *(where.line for where in self.endings.values()), end))
        for sign, (line, number) in self._last_signs.items():
            origin, text = self._prefixes.split(line, SIGNS[sign][0].words[0])
            self._sign(SIGNS[sign][0], origin, text, line, number)

    def _note_last_signs(self, chunk: bytes, found: Sequence[tuple[int, int, int]]) -> None:
        for sign, (words, unless) in _LAST.items():
            last = next((hit for hit in reversed(found) if hit[0] in words or hit[0] in unless), None)
            if last is not None and last[0] in unless:
                self._last_signs.pop(sign, None)
            elif last is not None:
                start = chunk.rfind(b"\n", 0, last[1]) + 1
                number = self.lines + (not self._within_line) + chunk.count(b"\n", 0, start)
                line = chunk[max(start, last[1] - BEFORE) : last[1] + AFTER].partition(b"\n")[0]
                self._last_signs[sign] = (clean(line), number)

    def _leave_out(self, skip: Skip, number: int) -> None:
        """Count the skipped lines with the next lines, which are equal and start at this number."""
        self._counts = skip.times + 1, number + skip.lines - 1
        for blocks in self._open.values():
            for block in blocks:
                block.last_line += skip.times * skip.lines

    def _is_head(self) -> bool:
        return self._nothing_new < _SAME_AGAIN and self.head < _LONGEST_HEAD

    def _line(self, chunk: bytes, at: int, end: int, number: int, found: Sequence[tuple[int, int, int]]) -> None:
        if chunk.find(OWN, at, min(end, at + LONGEST_PREFIX)) >= 0:
            return
        self._at = chunk, end
        words = {word for word, _, _ in found}
        if end - at <= AFTER and b"\r" not in chunk[at : end - 1]:
            self._text(clean(chunk[at:end]), number, words)
            return
        head = clean(chunk[at : at + LONGEST_PREFIX].partition(b"\r")[0])
        prefix = head[: len(head) - len(self._prefixes.split(head)[1])]
        last = b""
        for start, stop, inside in pieces(chunk, at, end, found):
            if last == (last := chunk[start:stop]):
                continue
            piece = clean(last)
            self._text(piece if start == at or piece.startswith(prefix) else prefix + piece, number, inside)

    def _text(self, line: str, number: int, words: Collection[int]) -> None:
        origin, text = self._prefixes.split(line, ALL_WORDS[min(words)].decode() if words else "")
        self._note_stream(origin)
        self._clock_s = origin.at_s or self._clock_s
        if self._open:
            self._offer(origin, text, number)
        uses = {_USES[word][1] for word in words}
        if "fact" in uses:
            self.facts.add(text)
        if "measured" in uses:
            self.measured.line(text, number)
        if "ending" in uses:
            for ending in endings.endings_in(text):
                self._end(ending, text, number)
        is_frame = "frame" in uses and origin.stream not in self._open and begins_within_a_traceback(text)
        is_logged = _LOGGED.search(line, 0, len(line) - len(text)) is not None
        if ("traceback" in uses or is_frame) and not is_logged:
            self._begin(origin, Traceback(number, text, self._announced_for(number)))
        if "run" in uses:
            for end in self._runs.note(text, origin.stream, number, self._clock_s):
                self._begin_run(end)
            self._restarts += 1  # the following lines may be of another run
        for use in uses & _BLOCKS.keys():
            self._begin(origin, _BLOCKS[use](number, text))
        for sign in dict.fromkeys(sign for word in sorted(words) for sign in _USES[word][0]):
            if not (is_logged and SIGNS[sign][0].tier == "exception" and SIGNS[sign][0].role == "pointer"):
                self._sign(SIGNS[sign][0], origin, text, line, number)

    @property
    def _last_exception(self) -> int:
        return max((seen.last_line for seen in self.seen.values() if seen.sign == "exception"), default=0)

    def _begin_run(self, end: int) -> None:
        self._keep("restarted", Origin(), self.where("", end), {"run": "1"})

    def _announced_for(self, number: int) -> Ending | None:
        ending, line = self._last_ending
        is_announced = ending is not None and line == number - 1 and ending.said.endswith(":")
        return ending if is_announced else None

    def _end(self, ending: Ending, text: str, number: int) -> None:
        self._last_ending = ending, number
        self.endings[ending, self._restarts] = self.where(text, number)

    def _note_stream(self, origin: Origin) -> None:
        if self._is_head():
            self.head += 1
            self.numbered += origin.launcher in ("srun", "mpirun")
            self.kernel += origin.kernel
            self._nothing_new += 1
        if self.ends.note(origin):
            self._nothing_new = 0

    def _sign(self, sign: Sign, origin: Origin, text: str, line: str, number: int) -> None:
        if sign.lines > 1:
            self._begin(origin, SignBlock(number, sign.lines, text, sign))
            return
        key = (sign.id, text, *_process(origin), self._restarts)
        if seen := self._again.get(key):
            self._count(seen, origin, number)
            return
        pattern = _PATTERNS[sign.id]
        if match := pattern.search(text) or pattern.search(line):
            start = match.start() if match.string == text else 0
            values: dict[str, str | None] = match.groupdict()
            if sign.id not in self._kept and (tells := _BEFORE_SIGN.get(sign.tier)):
                values |= tells(*self._at)
            kept = self._keep(sign.id, origin, self.where(text, number, start), values)
            if kept is not None and len(text) <= LONGEST_TEXT and len(self._again) < _MOST_OF_A_SIGN:
                self._again[key] = kept

    def _begin(self, origin: Origin, block: Block) -> None:
        blocks = self._open.setdefault(origin.stream, [])
        if len(blocks) < _MOST_BLOCKS and origin.stream in self.streams:
            blocks.append(block)

    def _offer(self, origin: Origin, text: str, number: int) -> None:
        """Pass a line to the blocks of its process, and close blocks that are complete or too old."""
        for block in self._open.pop(origin.stream, ()):
            if block.add(text, number):
                self._open.setdefault(origin.stream, []).append(block)
            else:
                self._close(block, origin)
        if number % 256 == 0:
            for stream, blocks in list(self._open.items()):
                if max(block.last_line for block in blocks) < number - _LONGEST_GAP:
                    del self._open[stream]
                    for block in blocks:
                        self._close(block, self.streams[stream].origin)

    def _close(self, block: Block, origin: Origin) -> None:
        if isinstance(block, Traceback):
            if block.of is not None:
                rank = origin.rank if block.of.rank is None else block.of.rank
                origin = origin._replace(rank=rank, local_rank=block.of.local_rank)
            if block.is_of_script and block.type and 0 < self._last_exception < block.first_line - _LINES_OF_A_START:
                self._begin_run(block.first_line - 1)
            if block.type is not None and not block.is_reported:
                self._keep("exception", origin, self.where(block.text, block.last_line), block.values())
        elif isinstance(block, Ras):
            self._ras += block.numbered
        elif isinstance(block, SignBlock) and block.sign is not None:
            if match := _PATTERNS[block.sign.id].search("\n".join(block.texts)):
                self._keep(block.sign.id, origin, self.where(block.texts[0], block.first_line), match.groupdict())
        else:
            of_mpirun = isinstance(block, SignBlock) and endings.ending_of_mpirun("\n".join(block.texts))
            ending = of_mpirun or (isinstance(block, Failure) and endings.ending_of_summary(block.fields))
            if ending:
                self._end(ending, ending.said, block.first_line)

    def _keep(self, sign: str, origin: Origin, where: LogLine, values: Mapping[str, str | None]) -> Seen | None:
        key: tuple[object, ...] = (sign, where.text, *_process(origin), self._restarts)
        if sign == "restarted":
            self._restarts += 1
        if key in self.seen:
            self._count(self.seen[key], origin, where.line)
            return self.seen[key]
        self._kept[sign] = self._kept.get(sign, 0) + 1
        if self._kept[sign] > _MOST_OF_A_SIGN:
            key = (sign,)  # keep the last of them, because the end decides
        safe = {
            name: masked(value[:_LONGEST_VALUE])
            for name, value in values.items()
            if value is not None and not _NO_NUMBER.match(value)
        }
        self.seen[key] = Seen(sign, where, origin, safe, 0)
        self._count(self.seen[key], origin, where.line)
        return self.seen[key] if len(key) > 1 else None

    def _count(self, seen: Seen, origin: Origin, number: int) -> None:
        count, until = self._counts
        seen.times += origin.times * (count if number <= until else 1)
        seen.last_line = number

    def where(self, text: str, number: int, word_at: int = 0) -> LogLine:
        """Return a line as it is kept: cut around what was found, and without credentials."""
        start = max(word_at - LONGEST_TEXT // 4, 0) if word_at > LONGEST_TEXT * 3 // 4 else 0
        # Masked text may begin before the cut.
        shown = masked(text[max(start - LONGEST_TEXT, 0) : start + 2 * LONGEST_TEXT])
        shown = shown[min(start, LONGEST_TEXT) :]
        return LogLine(file=self.name, line=number, text=shown[:LONGEST_TEXT].rstrip())

    def kind(self) -> str:
        """Return the kind of the file, from the lines at its start."""
        return "kernel log" if self.kernel * 2 > self.head else "output"
