"""``ddp-doctor trace``: the profiler's traces of a job's ranks, file by file, into facts.

Each file is read once, from its beginning to its end, and little is kept of its events.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.app.recordings import read_json, report_in
from ddp_doctor.engine.memory import no_garbage_collection
from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.reading.rank import NotATrace, read_trace
from ddp_doctor.features.trace.views.windows import windows
from ddp_doctor.model.choices import Status
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options
from ddp_doctor.sources.job_files import JobFile, job_files, total_bytes
from ddp_doctor.starters.interruption import calling
from ddp_doctor.wording.nodes import name_list

#: Called with the bytes read, and the total number if known.
Progress = Callable[[int, int], None]
#: Maximum number of unread files in a recording.
_MOST_UNREAD = 20
#: A directory of one rank: runs/rank_0/trace.json.
_DIRECTORY = re.compile(r"(?:^|/)(?:rank|worker)[-_.]?(\d{1,6})(?=/|$)", re.IGNORECASE)
#: The rank in a file name; the last match counts: rank-34.Jul_15_10_52_41.json.gz, trace_0.json.
_RANK = re.compile(r"(?<![a-z])(?:rank|worker|trace)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
#: HOST_PID.NANOSECONDS.pt.trace.json, as tensorboard_trace_handler names files: a host may be called worker-3.
_OF_TORCH = re.compile(r"(?!rank)[^/]*_\d+\.\d{10,}\.pt\.trace\.json(\.\w+)?$", re.IGNORECASE)
_HOW = (
    "expected a trace of torch.profiler, for example from the lines of `ddp-doctor template profile`, or one that"
    " Kineto wrote on demand"
)
#: Files of other profilers, by the end of the name or the first bytes.
_OTHERS = (
    ((".nsys-rep", ".qdrep", ".qdstrm"), b"\0nothing", "a report of Nsight Systems"),
    ((".ncu-rep",), b"NVR\0", "a report of Nsight Compute"),
    ((".sqlite",), b"SQLite format 3\0", "a database, as Nsight Systems exports it"),
    ((".pickle",), b"\x80", "a pickle, like torch's memory snapshots"),
)


class Unread(NamedTuple):
    """A file without a trace."""

    name: str
    why: str
    is_other: bool = False  # it could be read, but is not a trace
    is_beside: bool = False  # … that is in the same directory but was not named on the command line


@dataclass
class Traces:
    """The traces read from some paths."""

    facts: list[TraceFact] = field(default_factory=list)  # one for each window and rank, in the order of the files
    unread: list[Unread] = field(default_factory=list)
    interrupted: bool = False  # Ctrl-C ended the reading; complete steps of the last file were read


def trace(
    paths: Sequence[str], options: Options, progress: Progress | None = None, against: str | None = None
) -> Outcome:
    """Analyze the traces in these paths; ``against`` is a run's report. Raises UsageError if there is no trace."""
    started = time.monotonic()
    if against is not None:
        options = options.model_copy(update={"expected_busbw": _busbw_in(against)})
    read = read_traces(paths, progress)
    readings = [*map(collected, read.facts), *_skipped(read.unread)]
    duration_s = time.monotonic() - started
    recording = blank(options, readings=tuple(readings), interrupted=read.interrupted, duration_s=duration_s)
    if options.window.isdecimal() and not windows(recording):
        every = recording.model_copy(update={"options": options.model_copy(update={"window": "all"})})
        if count := len(windows(every)):
            known = f"windows 1 to {count}" if count > 1 else "only window 1"
            raise UsageError(f"--window {options.window} is out of range: the traces have {known}")
    return judge(recording)


def collected(fact: TraceFact) -> Reading:
    """Return the reading without default values, because there are thousands of calls."""
    recorded = {"kind": fact.KIND, **fact.model_dump(mode="json", exclude_defaults=True)}
    return Reading(check="trace", status=Status.COLLECTED, rank=fact.rank, fact=recorded)


def _skipped(unread: Sequence[Unread]) -> Iterator[Reading]:
    """Yield the files without a trace up to a limit; unnamed files next to traces are counted together."""
    named = [file for file in unread if not file.is_beside][:_MOST_UNREAD]
    for file in named:
        yield Reading(check="trace", status=Status.SKIPPED, part=file.name, reason=file.why)
    if left := len(unread) - len(named):
        why = "1 other file is not a trace" if left == 1 else f"{left} other files are not traces"
        yield Reading(check="trace", status=Status.SKIPPED, reason=why)


def read_traces(paths: Sequence[str], progress: Progress | None = None) -> Traces:
    """Return all traces in files, directories, archives and stdin (``-``). Raises UsageError if there is none."""
    read, done, total = Traces(), 0, total_bytes(paths) if progress else 0
    with _interruptible(read, paths):
        for file in job_files(paths):

            def blocks(file: JobFile = file, before: int = done) -> Iterator[bytes]:
                for block in file.blocks():
                    if read.interrupted:
                        return
                    yield block
                    if progress:
                        progress(before + file.packed_bytes, total)

            with no_garbage_collection():
                _add(read, file, blocks, paths)
            done += file.packed_bytes
            if read.interrupted:
                break
    if read.facts:
        return read
    if read.interrupted:
        raise KeyboardInterrupt
    if not read.unread:
        raise UsageError(f"found no file to read in {name_list([*map(quoted, paths)])}")
    first = next((file for file in read.unread if file.is_other), read.unread[0])
    more = f" (and {len(read.unread) - 1} more)" if len(read.unread) > 1 else ""
    raise UsageError(f"cannot read {quoted(first.name)}: {first.why}{more}{f'; {_HOW}' if first.is_other else ''}")


def _add(read: Traces, file: JobFile, blocks: Callable[[], Iterator[bytes]], paths: Sequence[str]) -> None:
    """Read one file into facts, or note why it cannot be read."""
    others = (kind for ends, begins, kind in _OTHERS if file.name.endswith(ends) or file.head.startswith(begins))
    other = next(others, "")
    if file.unread and not file.head:
        read.unread.append(Unread(file.name, file.unread))
    elif other:
        read.unread.append(Unread(file.name, f"it is {other}", is_other=True))
    elif not file.head.strip():
        read.unread.append(Unread(file.name, "it is empty"))
    else:
        try:
            fact = read_trace(file.name, blocks())
        except NotATrace as error:
            if not read.interrupted:
                is_named = file.name in paths or file.name.endswith(".gz") or b'"traceEvents"' in file.head
                read.unread.append(Unread(file.name, str(error), is_other=True, is_beside=not is_named))
            return
        read.facts.append(_with_rank_of_name(fact))


def _with_rank_of_name(fact: TraceFact) -> TraceFact:
    if fact.rank is not None:
        return fact
    folder, _, name = fact.file.replace(":", "/").rpartition("/")
    found = [*_DIRECTORY.findall(folder), *(() if _OF_TORCH.match(name) else _RANK.findall(name))]
    return fact.model_copy(update={"rank": int(found[-1])}) if found else fact


@contextmanager
def _interruptible(read: Traces, paths: Sequence[str]) -> Iterator[None]:
    """Let Ctrl-C or SIGTERM end the current file, and a second one all reading; a wait for stdin ends at once."""

    def note(_number: int, _frame: object) -> None:
        if read.interrupted:
            raise KeyboardInterrupt
        read.interrupted = True
        if "-" in paths:
            raise _StdinLeft

    with suppress(_StdinLeft), calling(note):
        yield


class _StdinLeft(BaseException):
    """The user ended the reading of stdin."""


def _busbw_in(path: str) -> float:
    """Return the bus bandwidth (B/s) of a run's largest all-reduce. Raises UsageError if it has none."""
    measured = [each for each in report_in(read_json(path)).measurements if each.name == "allreduce_busbw"]
    if not measured:
        raise UsageError(
            f"{quoted(path)} has no all-reduce measurement; give a report of `ddp-doctor run` on the job's nodes"
        )
    return max(measured, key=lambda each: int(each.labels.get("bytes", 0))).value
