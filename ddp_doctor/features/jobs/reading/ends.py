"""The processes that print into a file, the last lines of each and of the file, and what these lines show.

    epoch 9: loss 0.113                        steps: the same text with other numbers
    Training complete, model saved to out.pt   a good end
    NCCL INFO comm 0x7f rank 0 - Destroy COMPLETE

Steps are found without a list of programs. Lines that repeat a number while a program waits, retries or loads are not
steps, and neither are NCCL's lines about its channels.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from ddp_doctor.features.jobs.facts import LogLine
from ddp_doctor.features.jobs.reading.prefix import LONGEST_PREFIX, Origin, Prefixes, clean
from ddp_doctor.features.jobs.reading.words import AFTER, search_for
from ddp_doctor.model.base import grouped

#: Maximum number of lines after a good end: notices of libraries, an empty bar, a shell's times.
_LINES_AFTER_THE_END = 40
#: Minimum number of different lines of one shape that are steps, and the maximum number of lines after the last.
_LEAST_STEPS = 3
_LINES_AFTER_A_STEP = 20


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE | re.ASCII)


_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
_WORK = _any_of(
    r"\b(?:step|iter|iteration|epoch|batch|loss|sample|token)s?\b[^a-z]{0,5}\d", r"\d%\|", r"\bit/s\b", r"s/it\b"
)
_LETTER = re.compile(r"[^\W_]")
_OF_NCCL = re.compile(r"NCCL (?:INFO|TRACE|WARN)")
_OF_DATA = _any_of(r"examples/s", r"^(?:loading|downloading|fetching|tokeniz|map|filter)\w*\b.*%\|")
_STALLED = _any_of(r"\bstall", r"no progress", r"\bretry", r"\bstuck\b", r"\bhang")
#: Lines whose numbers differ because they count tries, waiting, faults, processes or downloads.
_NO_STEP = _any_of(
    r"stall|retr(?:y|ies)|attempt|wait|connect|time.?out|heartbeat|fail|error|warn|stuck|pending|sleep",
    r"start|load|tokeniz|queue|file|shard|rank|worker|node|gpu|device|process|thread|pid|port|frame|0x",
)
_RUN = (
    r"\b(?:training|trainer|train|job|run|program|script|experiment|fine-?tuning|evaluation|testing|benchmark|main"
    r"|all ranks|worker group)\b"
)
_DONE = r"\b(?:completed?|finished|done|concluded|succeeded|successful(?:ly)?|end time|reached)\b"
_SAVED = r"\b(?:saved?|saving|wrote|written|uploaded|exported)\b"
_FINISHED = _any_of(
    rf"{_RUN}[^.:;]{{0,60}}{_DONE}",
    rf"{_DONE}[^.:;]{{0,30}}{_RUN}",
    r"\bend time of running\b",
    r"destroy(?:ed|ing)? (?:the )?process groups?",
    r"destroy_process_group\(\) was not called before program exit|process group has NOT been destroyed before",
    r"Destroy COMPLETE",
    r"train_runtime",
    r"`max_(?:epochs|steps)=\d+` reached",
    r"\btotal (?:training )?(?:time|runtime)\b|\btraining time\b|^(?!.*\b(?:epoch|step|iter)).*\btraining took\b",
    r"\brun (?:summary|history)\b|\bsynced ?:",
    r"\bdiagnostics completed\b",
    r"# Avg bus bandwidth|\bOut of bounds values : 0 OK",
    r"\b(?:final|best|test|val(?:idation)?|eval(?:uation)?)[ _-]{0,3}"
    r"(?:loss|acc(?:uracy)?|perplexity|ppl|score|results?)\b",
    r"\bexit(?:ed)?(?: with)?(?: exit)?[ -](?:code|status)[:= ]{1,3}0\b",
    r"\bstate[:=] ?COMPLETED\b|(?-i:\bWorkerState\.SUCCEEDED\b)|\"status\": ?\"success\"|^real\s+\d+m",
    r"^(?:all )?(?:done|finished|completed?|success|ok|passed|bye|goodbye)\b[^a-z]{0,20}$",
    #: The last of a known number: 500/500, epoch 10 of 10, 100%|###|.
    r"(?<![\d./])(?P<all>[1-9]\d{0,8}) ?(?:/|of) ?(?P=all)(?![\d./])|\b100(?:\.0+)? ?%",
)
_SAVED_OR_PART = _any_of(
    rf"{_SAVED}.{{0,80}}(?:model|checkpoint|ckpt|weights|state|results?|\.pth?\b|\.bin\b|\.safetensors\b)",
    rf"\b(?:model|checkpoint|weight|result)s?\b.{{0,60}}{_SAVED}",
    r"\bepoch[ :]\d+[ :,]+(?:done|finished|completed?)\b",
)
#: Words that exclude a good end.
_NOT_GOOD = _any_of(
    r"\bnot (?:be |been )?(?:saved|written|completed?|finished|done)|\bdid not\b|\bunsuccessful",
    r"\bunable|\bcould not|\bcannot|fail|error|incomplete|abort|kill|exception|\binvalid|\bincorrect|\bnot ready",
    r"\bno (?:transport|such|space|route)\b",
    r"\b(?:code|status)[:= ]{1,3}[1-9]|\breceived [1-9]\d{0,2} from",
    r"\bwill be (?:saved|written)|\bbefore (?:training|the run)",
    r"(?:download|load|tokeniz|map|cache|caching)\w*\b.{0,40}100 ?%|shards?|\d[kMG]i?B?/\d|\b[kMG]i?B/s|examples/s",
    r"NCCL INFO (?!.*Destroy COMPLETE)|MEMBER: \d",
)
UNUSUAL = _any_of(
    r"\b(?:fatal|error|exception|fail\w*|abort\w*|killed|terminated|denied|refused|unreachable|no route|stall\w*)\b",
    r"\b(?:dead|died|couldn't|cannot|could not)\b|\bexit code[: ]{1,2}-?[1-9]|\bSIG[A-Z]{3,4}\b",
    r"\b(?:stuck|panic|HSA_STATUS_\w+|hang|hung|mismatch)\b|\bWARN",
)
#: Lines about the end of a process, by a shell or launcher; about accelerate's defaults; and about deprecations.
_OF_LAUNCHERS = re.compile(
    r"(?:\S+: )?(?:Terminated|Killed|Aborted)(?: .{0,200})?"
    r"|(?:srun|slurmstepd)\b.*(?:\btasks? [\d,-]+: |Job step aborted|CANCELLED|Terminating|forcing|oom).*"
    r"|The following values were not passed to `accelerate.*|`--.{1,80} was set to a value of.*|To avoid this warn.*"
    r"|Root Cause \(first observed failure\):|Failures:|\S* ?FAILED|<NO_OTHER_FAILURES>|\[\d+\]:"
    r"|(?:time|host|rank|exitcode|error_file) *: .*|traceback *: (?!Signal).*"
    r"|.*failed \(exitcode: -?\d+\) local_rank: .*|.*\bsigkill_handler\].*|.*exits with return code = .*"
    r"|A worker died or was killed while executing a task.*|.*\] Child process with PID \d+ terminated.*"
    r"|.*[Ss]ending process \d+ closing signal.*|-- Process \d+ terminated with the following error:"
    r"|(?:raise )?\S*(?:Process(?:Raised|Exited)Exception|ChildFailedError)\b.*|torch\.distr[\w.]*"
    r"|Traceback \(most recent call last\):|File \"[^\"]*|.*\bprocess group has NOT been destroyed\b.*"
    r"|.*[Tt]his is not an error.*|Warning: Permanently added .*"
    r"|(?:The above exception was the direct cause|During handling of the above exc).*"
    r"|.*exactly when Open MPI kills them.*|.*\bERROR For more info see.*"
    r"|.*\bis deprecated\b.*|.*\b(?:Deprecation|Future)Warning\b.*",
    re.IGNORECASE,
)


_LOSS = re.compile(r"(?:^|[^a-z])loss(?:es)?\b[^a-z\d\n]{0,12}(?:(?P<not_finite>nan|inf)\b|\d)", re.IGNORECASE)
#: Minimum number of lines in a row for a loss that stays NaN.
_LEAST_LOSSES = 3


class Conclusion(NamedTuple):
    """The line numbers of a good end, the last step, the most telling line and the first NaN, or None.

    ``is_finished``: the run ended, not only a checkpoint or an epoch. ``stops``: nothing follows the last step.
    """

    good_end: int | None = None
    is_finished: bool = False
    last_step: int | None = None
    unusual: int | None = None
    nan_since: int | None = None
    stops: bool = False


def conclusion(tail: Sequence[tuple[int, str]]) -> Conclusion:
    """Return what the last lines show. ``tail`` has their numbers and texts, the last line first."""
    good_end = next((number for number, text in tail[:_LINES_AFTER_THE_END] if _is_good_end(text)), None)
    if _is_in_traceback(tail):
        good_end = None
    said = [line for line in tail if _LETTER.search(line[1]) and not _OF_LAUNCHERS.fullmatch(line[1].strip())]
    unusual = next((number for number, text in said if UNUSUAL.search(text)), None)
    is_finished = any(number == good_end and _FINISHED.search(text) for number, text in tail)
    unusual = unusual or next((number for number, _ in said), None)
    step = _last_step(tail)
    stops = bool(said) and said[0][0] == step and _WORK.search(said[0][1]) is not None
    return Conclusion(good_end, is_finished, step, unusual, _nan_since(tail), stops)


def _is_in_traceback(tail: Sequence[tuple[int, str]]) -> bool:
    begins = "Traceback (most recent call last):"
    frames = [*takewhile(lambda line: line[1].startswith("  ") and not line[1].endswith(begins), tail)]
    return any(text.endswith(begins) for _, text in tail[len(frames) : len(frames) + 1])


def _nan_since(tail: Sequence[tuple[int, str]]) -> int | None:
    losses = ((number, text, found) for number, text in tail if (found := [*_LOSS.finditer(text)]))
    not_finite = [*takewhile(lambda loss: all(value["not_finite"] for value in loss[2]), losses)]
    return not_finite[-1][0] if len({text for _, text, _ in not_finite}) >= _LEAST_LOSSES else None


def _is_good_end(text: str) -> bool:
    return (_FINISHED.search(text) or _SAVED_OR_PART.search(text)) is not None and not _NOT_GOOD.search(text)


def _last_step(tail: Sequence[tuple[int, str]]) -> int | None:
    begun = next((at for at, (_, text) in enumerate(tail) if text.endswith("Init START")), len(tail))
    near_the_end = {_NUMBER.sub("0", text): number for number, text in reversed(tail[:begun][:_LINES_AFTER_A_STEP])}
    shapes = grouped((_NUMBER.sub("0", text), text) for _, text in tail[:begun])
    for shape, number in sorted(near_the_end.items(), key=lambda of: of[1], reverse=True):
        texts = {*shapes[shape]}
        is_work = _WORK.search(next(iter(texts))) is not None
        is_step = (
            not _OF_NCCL.search(shape)
            and not _OF_DATA.search(shape)
            and not (_STALLED if is_work else _NO_STEP).search(shape)
        )
        if is_step and len(texts) >= (2 if is_work else _LEAST_STEPS):
            return number
    return None


#: The start of the watcher's lines. They quote and explain, and are not output of the job.
OWN = b"ddp-doctor: "
#: Maximum number of lines of a chunk that are read, from its end.
_MOST_LINES = 20_000
_MOST_STREAMS = 20_000
#: Number of lines from the end that are searched for a good end and for steps.
_LAST_LINES = 500
#: NCCL prepares communication or has made a communicator, so it continued after its earlier warnings.
_GOES_ON = re.compile(
    r"NCCL INFO (?:Channel \d+(?:/\d+)? ?: \d+\[|Connected all|Using network |Trees \[|.{1,300} - Init COMPLETE)"
)
#: Streams of lines without a prefix that identifies the process.
OF_ANYBODY = frozenset(("", "time "))
#: Lines after a failure that belong to it: stacks of Python, of C++ and of the system, and marks of omitted lines.
_OF_STACK = re.compile(
    r'\s*(?:frame #\d+: |#\d+ +(?:0x|<)|File "[^"]{1,400}", line \d|[~^]{2,}$|\.\.\. \d+ lines|Extension modules?: '
    r"|<omitting |(?:Current thread|Thread) 0x|\*\*\* (?:Aborted|Process|Signal|End of error)|@ +0x[0-9a-f]+"
    r"|\[[\w.-]{1,100}:\d+\] \[ ?\d+\] |\S{1,300}\(\S{0,300}\+?0x[0-9a-f]+\) ?\[0x)"
)


@dataclass
class Stream:
    """The lines of a file that have the same prefix: of one process, or of several if there is no prefix."""

    origin: Origin
    last: LogLine | None = None
    last_at_s: float | None = None


class Ends:
    """The streams of one file. ``where`` returns the line to keep for a text and its line number."""

    def __init__(self, prefixes: Prefixes, where: Callable[[str, int], LogLine]) -> None:
        self.streams: dict[str, Stream] = {}
        self.of_rank: dict[int, tuple[LogLine, float | None]] = {}
        self.said: int | None = None  # number of the last line outside of a stack
        self.good_end: LogLine | None = None
        self.is_finished = False
        self.stops = False  # the file ends with the last step
        self.last_step: LogLine | None = None  # if steps continue to the end
        self.unusual: LogLine | None = None  # the last line about a fault, or the last line of the file
        self.nan_since: LogLine | None = None  # from this line on, every loss is NaN or infinite
        #: The last line about NCCL preparing communication, by host and pid.
        self.nccl_goes_on: dict[tuple[str | None, int], int] = {}
        self._left = _LAST_LINES
        self._tail: list[tuple[int, str]] = []  # the last lines, the last line first
        self._prefixes = prefixes
        self._where = where

    def note(self, origin: Origin) -> bool:
        """Note who printed a line, and return True if it is a new stream."""
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
        """Find the last line of each stream. Takes chunks of whole lines, the last first, and no more than needed.

        Each line is read in the first two chunks and among the last lines. Before them, only lines with the prefix of a
        missing stream are read.
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
    last = {word: start for word, start, _ in search_for(prefixes)(chunk)}
    return sorted({chunk.count(b"\n", 0, start) for start in last.values()}, reverse=True)
