"""Merge what the files of one job show into one fact: the rank of each line, and how each rank ended."""

import re
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

from ddp_doctor.facts.collectives import AllReduceFact
from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.features.jobs.facts import FileSeen, JobLogFact, LogLine, ProcessSeen, RankSeen, SignSeen
from ddp_doctor.features.jobs.reading.endings import OF_TORCHRUN, Ending
from ddp_doctor.features.jobs.reading.nccl_lines import transport_facts
from ddp_doctor.features.jobs.reading.prefix import Origin, attempt_of_path, of_path
from ddp_doctor.features.jobs.reading.scan import ALL_WORDS, FileScan, Seen
from ddp_doctor.features.jobs.reading.words import search_for
from ddp_doctor.model.base import grouped

#: Maximum number of signs kept for a job. A log full of errors has more.
_MOST_SIGNS = 20_000
#: A line with at most this many lines after it is near the end of its file.
_NEAR_THE_END_LINES = 50
#: An attempt that printed at most this many lines has only begun. The attempt before it counts.
_LINES_OF_A_RESTART = 12
#: torch's names of the default group, whose ranks are the job's ranks; no name before 2.3.
_DEFAULT_GROUP = re.compile(r"(?:0? ?\(?default_pg\)?|0)?")
#: The rank of the default group in c10d's lines; without the group before torch 2.2.
_RANK_SAID = re.compile(r"\[(?:PG ID 0 [^\]]{0,80}|PG 0 [^\]]{0,80})?Rank (?P<rank>\d{1,7})\]")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)
#: A sign, the first rank that printed it, all ranks that printed it, and torchrun's attempt.
_OfRanks: TypeAlias = tuple[Seen, int | None, set[int], int]


def fact_of_text(name: str, text: str, year: int) -> JobLogFact:
    """Return the facts from a text that is not a file. ``year`` is for times printed without a year."""
    scan, data = FileScan(name, year), text.encode()
    scan.feed(data, search_for(ALL_WORDS)(data))
    scan.end()
    return Job([scan]).fact([FileSeen(name=name, kind="output", size_bytes=len(data), lines=scan.lines)])


class Job:
    """The files of one job, in the given order."""

    def __init__(self, scans: Sequence[FileScan]) -> None:
        self._scans = scans
        self._paths = {scan.name: of_path(scan.name) for scan in scans}
        communicators = (ranks for scan in scans for _, ranks, _ in scan.nccl.ranks.values())
        self.world_size = self._first("world_size") or max(communicators, default=0) or None
        launchers = [scan.facts.launcher for scan in scans] + [
            origin.launcher
            for scan, origin in self._origins()
            if origin.launcher != "mpirun" or origin.rank is not None or scan.numbered * 2 > scan.head
        ]
        known = [launcher for launcher in launchers if launcher]
        self.launcher = next((name for name in (*OF_TORCHRUN, *known) if name in known), None)
        pairs = [(scan, origin) for scan, origin in self._origins() if origin.rank is not None]
        self._offset = self._offsets([*pairs, *self._summaries()])
        numbers = [local for scan, origin in self._origins() if (local := self._local(scan, origin)) is not None]
        self._local_is_rank = all(offset == 0 for offset in self._offset.values()) and (
            bool(self._offset) or (self.world_size is not None and self.world_size <= max(numbers, default=0) + 1)
        )
        self._task_is_rank = self.launcher not in OF_TORCHRUN and not any(
            origin.task is not None and origin.task != origin.rank for _, origin in pairs
        )
        self._of_process = self._ranks_of_processes()
        self._of_pid = {
            (scan.name, pid): ranks.pop()
            for (scan, pid), ranks in _sets(
                ((scan, origin.pid), origin.rank) for scan, origin in self._summaries() if origin.pid is not None
            ).items()
            if len(ranks) == 1
        }
        self._restarts = {
            scan.name: sorted(seen.where.line for seen in scan.seen.values() if seen.sign == "restarted")
            for scan in scans
        }
        self._last_attempt = 0  # until all attempts are known
        self._last_attempt = max((self._attempt(scan.name, scan.lines) for scan in scans), default=0)

    def fact(self, files: Sequence[FileSeen]) -> JobLogFact:
        """Return the facts that the output of the job shows."""
        signs = tuple(self._signs())
        return JobLogFact(
            files=tuple(files),
            signs=signs,
            ranks=tuple(self._ranks(signs)),
            local_ranks=tuple(self._local_ranks()),
            world_size=self.world_size,
            launcher=self.launcher,
            torch_version=self._first("torch_version"),
            backend=self._first("backend"),
        )

    def transports(self) -> Iterator[tuple[int | None, NcclTransportFact]]:
        """Yield NCCL's transports in each process, with its rank if known."""
        for scan in self._scans:
            for process, fact in transport_facts(scan.nccl.texts, scan.nccl.version).items():
                yield self._of_process.get(_process(process)) if process else None, fact

    def all_reduces(self) -> Iterator[AllReduceFact]:
        """Yield the all-reduces that nccl-tests measured, from the tables in the files."""
        for scan in self._scans:
            if (fact := scan.measured.fact(self.world_size or 0)) is not None:
                yield fact

    def _attempt(self, file: str, line: int) -> int:
        """Return the attempt of torchrun that printed a line; the last attempt if unknown, as in a kernel log."""
        of_path, restarts = attempt_of_path(file), self._restarts[file]
        if of_path is not None:
            return of_path
        return bisect_left(restarts, line) if restarts else self._last_attempt

    def _first(self, name: str) -> Any:
        return next((value for scan in self._scans if (value := getattr(scan.facts, name)) is not None), None)

    def _origins(self) -> Iterator[tuple[FileScan, Origin]]:
        for scan in self._scans:
            for stream in scan.streams.values():
                yield scan, stream.origin
            for seen in scan.seen.values():
                yield scan, seen.origin

    def _summaries(self) -> Iterator[tuple[FileScan, Origin]]:
        for scan in self._scans:
            for ending, _ in scan.endings:
                if ending.rank is not None and (ending.local_rank is not None or ending.pid is not None):
                    yield scan, Origin(ending.rank, ending.local_rank, host=ending.host, pid=ending.pid)

    def _offsets(self, pairs: Sequence[tuple[FileScan, Origin]]) -> dict[str, int | None]:
        """Return by file the difference of rank and local rank, or None if it varies within the file."""
        offsets: dict[str, set[int]] = {}
        for scan, origin in pairs:
            path = self._paths[scan.name]
            local = origin.local_rank if origin.local_rank is not None else path.local_rank
            if local is not None and origin.rank is not None:
                offsets.setdefault(scan.name, set()).add(origin.rank - local)
        return {name: found.pop() if len(found) == 1 else None for name, found in offsets.items()}

    def _ranks_of_processes(self) -> dict[tuple[str, int], int]:
        """Return ranks by host and pid, from prefixes and from NCCL's communicators of all ranks of the job."""
        found = {
            (origin.host, origin.pid): origin.rank
            for _, origin in self._origins()
            if origin.host is not None and origin.pid is not None and origin.rank is not None
        }
        for scan in self._scans:
            for process, (rank, ranks, _) in scan.nccl.ranks.items():
                if ranks == self.world_size:
                    found.setdefault(_process(process), rank)
        return found

    def _rank_of(self, scan: FileScan, origin: Origin) -> int | None:
        """Return the rank of a line: from its prefix, NCCL's process, a local rank, srun's number or the file name."""
        if origin.rank is not None:
            return origin.rank
        known = self._of_process.get((origin.host, origin.pid)) if origin.host and origin.pid else None
        if known is None and origin.pid is not None:
            known = self._of_pid.get((scan.name, origin.pid))
        if known is not None:
            return known
        local = self._local(scan, origin)
        if local is not None:
            offset = self._offset.get(scan.name, 0 if self._local_is_rank else None)
            return local + offset if offset is not None else None
        if origin.task is not None and self._task_is_rank and scan.numbered * 2 > scan.head:
            return origin.task
        path = self._paths[scan.name].rank
        return path if path is not None else self._sole_rank(scan)

    def _rank_said(self, seen: Seen) -> int | None:
        """Return the rank that a line of torch itself names. It is a rank of the job only in the default group."""
        said = _RANK_SAID.search(seen.where.text)
        rank = seen.values.get("group_rank", "") or (said["rank"] if said else "")
        known = rank.isdecimal() and (self.world_size is None or int(rank) < self.world_size)
        return int(rank) if known and _DEFAULT_GROUP.fullmatch(seen.values.get("group", "")) else None

    def _local(self, scan: FileScan, origin: Origin) -> int | None:
        return origin.local_rank if origin.local_rank is not None else self._paths[scan.name].local_rank

    def _sole_rank(self, scan: FileScan) -> int | None:
        processes = {_process(process) for process in scan.nccl.ranks}
        return self._of_process.get(processes.pop()) if len(processes) == 1 and len(scan.streams) == 1 else None

    def _signs(self) -> Iterator[SignSeen]:
        merged: dict[tuple[object, ...], _OfRanks] = {}
        for scan in self._scans:
            for seen in sorted(scan.seen.values(), key=lambda seen: seen.where.line):
                rank = self._rank_of(scan, seen.origin)
                rank = self._rank_said(seen) if rank is None else rank
                attempt = self._attempt(scan.name, seen.where.line)
                whose = "rank" if rank is not None else (seen.origin.host, seen.origin.pid, self._local_rank_of(seen))
                values = tuple(sorted((k, v) for k, v in seen.values.items() if k not in ("first_line", "frames")))
                key: tuple[object, ...] = (seen.sign, seen.where.text, values, whose, attempt)
                if key in merged:
                    merged[key] = self._merged(merged[key], scan, seen, rank)
                    continue
                if len(merged) >= _MOST_SIGNS:
                    key = (seen.sign, scan.name)  # the last of them, because the end decides
                merged[key] = (seen, rank, set() if rank is None else {rank}, attempt)
        for seen, rank, ranks, attempt in merged.values():
            yield SignSeen(
                sign=seen.sign,
                where=seen.where,
                rank=rank,
                local_rank=None if rank is not None else self._local_rank_of(seen),
                host=seen.origin.host,
                pid=seen.origin.pid,
                at_s=seen.origin.at_s,
                values=seen.values,
                times=seen.times,
                last_line=seen.last_line,
                in_init=_is_in_init(self._scans, seen),
                ranks=tuple(sorted(ranks)),
                attempt=attempt,
            )

    def _merged(self, of: _OfRanks, scan: FileScan, seen: Seen, rank: int | None) -> _OfRanks:
        """Merge equal signs of several ranks. The rank whose output ends soon after it counts: it did not recover."""
        kept, _, ranks, attempt = of
        if rank is None or rank in ranks:
            kept.times += seen.times
        else:
            ranks.add(rank)
        if kept.where.file == scan.name:
            kept.last_line = max(kept.last_line, seen.last_line)
            return of
        other = next(other for other in self._scans if other.name == kept.where.file)
        is_end = _lines_after(scan, seen) <= _NEAR_THE_END_LINES < _lines_after(other, kept)
        return (seen, rank, ranks, attempt) if is_end else of

    def _ranks(self, signs: Sequence[SignSeen]) -> list[RankSeen]:
        ranks: dict[int, dict[str, Any]] = {rank: {} for sign in signs for rank in sign.ranks}
        for rank, values in (*self._known_of_ranks(), *self._last_lines()):
            _fill(ranks.setdefault(rank, {}), values)
        for ending in self._endings():
            if ending.rank is not None:
                known = ranks.setdefault(ending.rank, {})
                values = ending._asdict()
                if known.get("exit_code") is not None or known.get("signal") is not None:
                    values |= {"exit_code": None, "signal": None}
                _fill(known, values)
        return [RankSeen(rank=rank, **values) for rank, values in sorted(ranks.items())]

    def _local_ranks(self) -> list[ProcessSeen]:
        found: dict[tuple[str | None, int], dict[str, Any]] = {}
        for scan in self._scans:
            for stream in scan.streams.values():
                local = self._local(scan, stream.origin)
                if local is not None and self._rank_of(scan, stream.origin) is None:
                    values = {**stream.origin._asdict(), "local_rank": local, "last": stream.last}
                    _fill(found.setdefault((stream.origin.host, local), {}), values)
        for ending in self._endings():
            if ending.rank is None and ending.local_rank is not None:
                _fill(found.setdefault((ending.host, ending.local_rank), {}), ending._asdict())
        return [ProcessSeen(**values) for _, values in sorted(found.items(), key=lambda at: (at[0][0] or "", at[0][1]))]

    def _local_rank_of(self, seen: Seen) -> int | None:
        path = next(self._paths[scan.name] for scan in self._scans if scan.name == seen.where.file)
        return seen.origin.local_rank if seen.origin.local_rank is not None else path.local_rank

    def _known_of_ranks(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for scan in self._scans:
            for process, (_, _, gpu) in scan.nccl.ranks.items():
                host, pid = _process(process)
                if (rank := self._of_process.get((host, pid))) is not None:
                    yield rank, {"host": host, "pid": pid, "gpu": gpu}
        for scan, origin in self._origins():
            if (rank := self._rank_of(scan, origin)) is not None:
                yield rank, {**origin._asdict(), "local_rank": self._local(scan, origin)}

    def _last_lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        last: dict[int, tuple[int, float, int, LogLine]] = {}
        for scan in self._scans:
            of_streams = (
                (self._rank_of(scan, stream.origin), stream.last, stream.last_at_s) for stream in scan.streams.values()
            )
            of_ranks = ((rank, line, at_s) for rank, (line, at_s) in scan.ends.of_rank.items())
            begins = max((seen.where.line for seen in scan.seen.values() if "run" in seen.values), default=0)
            for rank, line, at_s in (*of_streams, *of_ranks):
                if rank is not None and line is not None and line.line > begins:
                    attempt = self._attempt(scan.name, line.line)
                    last[rank] = max(
                        last.get(rank, (-1, -1.0, 0, line)),
                        (attempt, at_s or 0.0, line.line, line),
                        key=itemgetter(0, 1, 2),
                    )
        for rank, (*_, line) in last.items():
            yield rank, {"last": line}

    def _endings(self) -> Iterator[Ending]:
        found = [
            (scan, ending)
            for scan in self._scans
            for (ending, _), where in scan.endings.items()
            if self._attempt(scan.name, where.line) == self._last_attempt
            or (scan.ends.said or scan.lines) - where.line <= _LINES_OF_A_RESTART
        ]
        for scan, ending in sorted(found, key=lambda at: (at[1].rank is None, at[1].pid is None)):
            if ending.rank is None:
                rank = self._rank_of(scan, Origin(local_rank=ending.local_rank, pid=ending.pid))
                yield ending._replace(rank=rank)
            elif ending.pid is not None or self._task_is_rank or not ending.said.startswith("srun"):
                yield ending


def _is_in_init(scans: Sequence[FileScan], seen: Seen) -> bool:
    if " WARN " not in seen.where.text or seen.origin.pid is None:
        return False
    process = f"{seen.origin.host}:{seen.origin.pid}".encode()
    return any(
        scan.nccl.is_in_init(process, seen.last_line)
        or scan.ends.nccl_goes_on.get((seen.origin.host, seen.origin.pid), 0) > seen.last_line
        for scan in scans
        if scan.name == seen.where.file
    )


def _lines_after(scan: FileScan, seen: Seen) -> int:
    return (scan.ends.said or scan.lines) - seen.last_line


def _sets(pairs: Iterable[tuple[K, V]]) -> dict[K, set[V]]:
    return {key: set(values) for key, values in grouped(pairs).items()}


_FIELDS = frozenset(RankSeen.model_fields) - {"rank"}


def _fill(known: dict[str, Any], values: Mapping[str, Any]) -> None:
    known.update({name: value for name, value in values.items() if name in _FIELDS and known.get(name) is None})


def _process(process: bytes) -> tuple[str, int]:
    host, _, pid = process.decode("utf-8", "replace").rpartition(":")
    return host, int(pid)
