"""``ddp-doctor logs``: why a job failed, from its output and the dumps of its flight recorder.

Each input is read by the reader of its kind. Output is searched for the words of all signs.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.app.recordings import recording_in
from ddp_doctor.facts.given import RecordingFact
from ddp_doctor.features.jobs.facts import FileSeen
from ddp_doctor.features.jobs.reading.assemble import Job
from ddp_doctor.features.jobs.reading.containers import (
    chunks_of_entries,
    chunks_of_utf16,
    document,
    is_entries,
    is_entry_per_line,
    is_stacks,
    is_utf16,
    text_of_entries,
    text_of_stacks,
)
from ddp_doctor.features.jobs.reading.measured import inspected, is_inspector, is_nccl_tests, text_of_nccl_tests
from ddp_doctor.features.jobs.reading.ras import is_ras, text_of_ras
from ddp_doctor.features.jobs.reading.scan import ALL_WORDS, FileScan
from ddp_doctor.features.jobs.reading.words import search_for
from ddp_doctor.model.choices import Command
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options
from ddp_doctor.parse.file_kinds import RECORDING, is_error_file, is_recording, text_of_error_file
from ddp_doctor.parse.flight_recorder import is_dump, read_dump
from ddp_doctor.parse.text import as_utf8
from ddp_doctor.sources.job_files import CHUNK_BYTES, JobFile, job_files, total_bytes
from ddp_doctor.wording.nodes import name_list

#: Called with the number of bytes read and the total, if known.
Progress = Callable[[int, int], None]
#: Maximum number of concurrent searches. Each searches one or two megabytes.
_MOST_THREADS = 16
_LARGEST_WHOLE_BYTES = 256 << 20
#: Chunks that are kept to read the last lines of text that was in another format.
_LAST_CHUNKS = 4
#: Maximum number of processes whose NCCL lines are kept, over all files.
_MOST_NCCL_PROCESSES = 1_024
_CONTROLS = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f]")


class Reader(NamedTuple):
    """The reader for one kind of file. It returns readings, or text that is then read as output."""

    kind: str
    knows: Callable[[bytes, str], bool]  # from the first 64 KiB and the name
    reads: Callable[[JobFile, bytes], Iterable[Reading] | str] | None = None  # from the entire content
    streams: Callable[[JobFile], Iterator[bytes]] | None = None


def _dump(file: JobFile, data: bytes) -> list[Reading]:
    """Return a fact even if the dump cannot be read: it may be the faulty rank's."""
    fact = read_dump(data, file.name, file.modified_s)
    if fact.problem is not None:
        file.unread, file.size_bytes = fact.problem, 0
    return [fact.collected("logs", rank=fact.rank)]


#: To read another kind of file, add a row. The first reader that knows a file reads it; unknown files are output. A
#: reader may raise UsageError or ValueError with a message.
READERS: tuple[Reader, ...] = (
    Reader(
        RECORDING,
        lambda head, _: is_recording(head),
        lambda file, data: [
            RecordingFact(file=file.name, recording=recording_in(Path(file.name), data)).collected("logs")
        ],
    ),
    Reader("answers of NCCL's RAS", is_ras, lambda _, data: text_of_ras(data)),
    Reader("nccl-tests' report", is_nccl_tests, lambda _, data: text_of_nccl_tests(data)),
    Reader(
        "NCCL Inspector's lines",
        is_inspector,
        lambda _, data: [fact.collected("allreduce", rank=rank) for rank, fact in inspected(data)],
    ),
    Reader("torchelastic's error file", is_error_file, lambda _, data: text_of_error_file(data)),
    Reader("flight recorder", is_dump, _dump),
    Reader("output", is_utf16, streams=lambda file: chunks_of_utf16(file.blocks())),
    Reader(
        "output",
        lambda head, name: is_entries(head, name) and is_entry_per_line(head),
        streams=lambda file: chunks_of_entries(file.chunks()),
    ),
    Reader("output", is_entries, lambda _, data: text_of_entries(data)),
    Reader("output", is_stacks, lambda _, data: text_of_stacks(data)),
)


def logs(
    paths: Sequence[str],
    ignore: tuple[str, ...] = (),
    progress: Callable[[int, int], None] | None = None,
    starts: Mapping[str, int] | None = None,
) -> Outcome:
    """Diagnose these files. Raises UsageError if none can be read.

    ``progress`` is called with the number of bytes read and the total. ``starts``: byte offsets at which to start in
    files that begin with other output.
    """
    started = time.monotonic()
    recording = blank(Options(command=Command.LOGS, ignore=ignore))
    readings = read_job(paths, progress, starts or {})
    duration_s = time.monotonic() - started
    return judge(recording.model_copy(update={"readings": readings, "duration_s": duration_s}))


def read_job(
    paths: Sequence[str], progress: Progress | None = None, starts: Mapping[str, int] = MappingProxyType({})
) -> tuple[Reading, ...]:
    """Return the readings from these paths, a JobLogFact first. Raises UsageError if no file could be read."""
    return _Reading(paths, progress, starts).read()


class _Reading:
    def __init__(self, paths: Sequence[str], progress: Progress | None, starts: Mapping[str, int]) -> None:
        self._paths = paths
        self._starts = starts
        self._progress = progress
        self._total = total_bytes(paths) if progress else 0
        self._search = search_for(ALL_WORDS)
        self._threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
        self._files: list[FileSeen] = []
        self._scans: list[FileScan] = []
        self._readings: list[Reading] = []
        self._nccl_processes = 0
        self._done = 0

    def read(self) -> tuple[Reading, ...]:
        with ThreadPoolExecutor(self._threads) as pool:
            for file in job_files(self._paths, self._starts):
                self._take(file, pool)
                self._done += file.packed_bytes
        if not self._files:
            raise UsageError(f"found no file to read in {name_list([*map(quoted, self._paths)])}")
        if all(file.unread and not file.lines for file in self._files) and self._files[0].kind != "empty":
            others = f" (and {len(self._files) - 1} more)" if len(self._files) > 1 else ""
            raise UsageError(f"cannot read {quoted(self._files[0].name)}: {self._files[0].unread}{others}")
        job = Job(self._scans)
        first = job.fact(self._files).collected("logs")
        transports = (fact.collected("logs", rank=rank) for rank, fact in job.transports())
        measured = (fact.collected("allreduce") for fact in job.all_reduces())
        return first, *transports, *measured, *self._readings

    def _take(self, file: JobFile, pool: ThreadPoolExecutor) -> None:
        kind, lines, ends = "output", 0, None
        reader = next(
            (row for row in READERS if (file.head or not file.unread) and row.knows(file.head, file.name)), None
        )
        if reader is not None:
            kind = reader.kind
            scan = self._by(reader, file, pool)
            lines, ends = (scan.lines, scan.ends if kind == "output" else None) if scan else (0, None)
        elif _is_binary(file.head):
            kind, file.unread = "binary", file.unread or "it is binary, and of no kind that is known here"
            file.size_bytes = 0
        elif file.head:
            scan = self._scanned(file, file.chunks(), pool)
            scan.ends.look(file.backwards(), scan.lines)
            kind, lines, ends = scan.kind(), scan.lines, scan.ends
        elif not file.unread:
            kind, file.unread = "empty", "it is empty"
        self._files.append(
            FileSeen(
                name=file.name,
                kind=kind,
                size_bytes=file.size_bytes,
                lines=lines,
                said=ends.said if ends else None,
                good_end=ends.good_end if ends else None,
                is_finished=ends.is_finished if ends else False,
                stops=ends.stops if ends else False,
                last_step=ends.last_step if ends else None,
                unusual=ends.unusual if ends else None,
                nan_since=ends.nan_since if ends else None,
                unread=file.unread,
                document=document(file.head) if kind == "output" else "",
            )
        )

    def _by(self, reader: Reader, file: JobFile, pool: ThreadPoolExecutor) -> FileScan | None:
        last = deque[bytes](maxlen=_LAST_CHUNKS)
        try:
            scan = self._scanned(file, _kept(self._chunks(reader, file), last), pool)
        except (UsageError, ValueError) as error:
            file.unread = str(error)
            return None
        if not last:
            self._scans.remove(scan)
            return None
        scan.ends.look(reversed(last), scan.lines)
        return scan

    def _chunks(self, reader: Reader, file: JobFile) -> Iterator[bytes]:
        if reader.streams is not None:
            yield from reader.streams(file)
        elif (data := file.all(_LARGEST_WHOLE_BYTES)) is None:
            file.unread = f"it is larger than {_LARGEST_WHOLE_BYTES >> 20} MiB"
        elif reader.reads is not None:
            found = reader.reads(file, data)
            if isinstance(found, str):
                yield as_utf8(found).encode()
            else:
                self._readings += found

    def _scanned(self, file: JobFile, chunks: Iterable[bytes], pool: ThreadPoolExecutor) -> FileScan:
        clock = datetime.fromtimestamp(file.modified_s or time.time(), timezone.utc)
        scan = FileScan(file.name, clock.year)
        for chunk, found in self._searched(chunks, pool):
            scan.feed(chunk, found)
            if self._progress:
                self._progress(self._done + file.packed_bytes, self._total)
        scan.end()
        self._nccl_processes += len(scan.nccl.texts)
        if self._nccl_processes > _MOST_NCCL_PROCESSES:
            scan.nccl.texts.clear()
        self._scans.append(scan)
        return scan

    def _searched(
        self, chunks: Iterable[bytes], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[bytes, list[tuple[int, int, int]]]]:
        ahead: deque[tuple[bytes, Future[list[tuple[int, int, int]]]]] = deque()
        for chunk in chunks:
            if len(chunk) < CHUNK_BYTES // 4 and not ahead:
                yield chunk, self._search(chunk)
                continue
            ahead.append((chunk, pool.submit(self._search, chunk)))
            if len(ahead) > self._threads:
                first, found = ahead.popleft()
                yield first, found.result()
        for chunk, found in ahead:
            yield chunk, found.result()


def _kept(chunks: Iterable[bytes], last: deque[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        last.append(chunk)
        yield chunk


def _is_binary(head: bytes) -> bool:
    """Return True for binary data: over 5% control characters. Zeros, which crashes leave, are ignored up to 75%."""
    sample = head[:8192].replace(b"\0", b"")
    return bool(head) and (len(sample) * 4 < len(head[:8192]) or len(_CONTROLS.findall(sample)) * 20 > len(sample))
