"""The answer of NCCL's RAS about a job, as text or JSON, with a note after each dead, unresponsive or late rank.

    Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
        #  in group  per comm  per node  per comm  in group
        0         1         4         8        32        32   RUNNING  INCOMPLETE
    DEAD
      1 job process is considered dead (unreachable via the RAS network)
      Process 3487984 on node 172.16.64.213 managing GPU 5
    #0-0 (cf264af53edbe986) INCOMPLETE
      Missing communicator data from 1 rank
      Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213
    #0-0 (cf264af53edbe986) MISMATCH
      Communicator ranks have different AllReduce operation counts
      30 ranks have launched up to operation 6650
      Rank 7 has launched up to operation 6649 -- GPU 7 managed by process 483079 on node 172.16.64.210

(NCCL user guide, troubleshooting, RAS; src/ras/client_support.cc, 2.24 to 2.31.) The counts are of launches, not of
completed operations, and are read one after another, so in a healthy job a rank may be behind for a moment. Only a
second answer with the same counts shows that it makes no progress. The listed ranks are the minority, ahead or behind.
If at least half of the ranks are behind, the note gives their number and names none. A communicator that is smaller
than the largest has its own rank numbers, so the note names processes.

JSON is converted to these lines first.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ddp_doctor.features.jobs.facts import Launched
from ddp_doctor.model.base import grouped
from ddp_doctor.parse.json_value import OTHER_SHAPE, json_object

#: NCCL's and CUDA's versions are printed before it. Further down in a job's output, scan.py finds it.
_BEGINS_WITHIN = 500
_TABLE_ROW = re.compile(r"^\s{0,12}(\d{1,6})\s+(\d{1,7})(?:\s+[\d-]{1,15}){2}\s+(\d{1,7})\s+(\d{1,8})\s+[A-Z]")
_BLOCK = re.compile(r"^\s{0,4}#(\d{1,6})-\d{1,6} \(\w{1,40}\) ([A-Z]{4,20})")
_SEVERAL = re.compile(r"^\s+(\d{1,7}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_ONE = re.compile(r"^\s+Rank (\d{1,7}) has (?:launched up to operation (\d{1,18})|not launched any operations)")
_OF = re.compile(r"ranks have different (\w{1,30}) operation counts")
_RANK = re.compile(r"^\s+Rank (\d{1,7}) .{0,80}?managed by process (\d{1,10}) on node (\S{1,255})")
_MANAGED = re.compile(r"managed by (process \d{1,10} on node \S{1,255})")
_DEAD = re.compile(r"Process (\d{1,10}) on node (\S{1,255}) managing GPU")
_OF_PAIRS = ("Send", "Recv", "SendRecv")
#: NCCL 2.28.9 omits a comma after the GPU of a missing rank.
_NO_COMMA = re.compile(r'("nvml_dev": -?\d{1,5})(\s+"status")')


def is_ras(head: bytes, _name: str = "") -> bool:
    """Return True if a file is an answer of ncclras or of RAS's socket."""
    return b"Job summary\n===" in head[:_BEGINS_WITHIN] or (b'"communicators"' in head and b'"missing_ranks' in head)


def text_of_ras(data: bytes) -> str:
    """Return the answer with its notes, line by line. Raises ValueError for truncated JSON."""
    text = data.decode("utf-8", "replace")
    lines = _of_text(text if b"Job summary" in data else _text_of_json(text))
    answers = Counter(note._replace(answer=0) for note in {note for _, note in lines if note})
    return "".join(
        f"{line}{_said(note, answers[note._replace(answer=0)] > 1) if note else ''}\n" for line, note in lines
    )


def stand_still(first: str, last: str) -> tuple[Launched, ...]:
    """Return the counts of the largest communicator that differ between its ranks and are equal in both text answers.

    Empty if any of them has changed. Counts of pairs (Send and Recv) may differ in a healthy job.
    """
    counts = [_differing(answer) for answer in (first, last)]
    return counts[0] if counts[0] == counts[1] else ()


def launches(answer: str) -> dict[int, int]:
    """Return how many collectives each rank launched in the largest communicator of a JSON answer; empty otherwise."""
    try:
        groups = json_object(_NO_COMMA.sub(r"\1,\2", answer[answer.find("{") :]))["communicators"]
        world: dict[str, Any] = max(groups, key=lambda group: group["size"], default={})
        return {int(rank["rank"]): sum(rank["collective_counts"].values()) for rank in world.get("ranks", ())}
    except OTHER_SHAPE:
        return {}


def _differing(answer: str) -> tuple[Launched, ...]:
    read = _Text(answer)
    for line in filter(None, answer.splitlines()):
        read.note(line)
    return tuple(
        Launched(
            operation=operation,
            by_rank=tuple(sorted(named.items())),
            others=others[0] if len(others := tuple(set(read.unnamed[operation]))) == 1 else None,
        )
        for operation, named in read.named.items()
        if operation not in _OF_PAIRS
    )


class _Note(NamedTuple):
    """A dead, unresponsive or late rank, or several such ranks. ``most``: operations that others have launched.

    ``group`` is the communicator, and ``answer`` the number of the answer in the text.
    """

    rank: int | None
    state: str = ""
    launched: int = 0
    most: int = 0
    operation: str = ""
    several: str = ""
    group: str = ""
    answer: int = 0


_Lines = list[tuple[str, _Note | None]]
#: The state of the line above the counts of one operation.
_HEADER = "header"


def _said(note: _Note, in_two_answers: bool) -> str:
    rank = f"rank {note.rank} " if note.rank is not None else ""
    if not note.most:
        return f" [RAS: {rank}{note.state}]"
    state = "stands still" if in_two_answers else "behind"
    return f" [RAS: {rank or f'{note.several} '}{state} at {note.launched} of {note.most} {note.operation}]"


def _of_text(text: str) -> _Lines:
    read = _Text(text)
    lines = [(line, read.note(line), len(read.counts) - 1, read.answer) for line in text.splitlines()]
    return [(line, read.judged(note, block, answer)) for line, note, block, answer in lines]


class _Counts:
    def __init__(self, operation: str, group: str = "", *, is_world: bool) -> None:
        self.operation, self.group, self.is_world = operation, group, is_world
        self.parts: list[tuple[int, int]] = []
        self.processes: list[tuple[int, str]] = []  # launched, and "process 812 on node n1"

    @property
    def most(self) -> int:
        return max((launched for _, launched in self.parts), default=0)

    @property
    def behind(self) -> int:
        return sum(ranks for ranks, launched in self.parts if launched < self.most)

    @property
    def are_few_behind(self) -> bool:
        """Return True if fewer ranks are behind than not, or one of two is."""
        total = sum(ranks for ranks, _ in self.parts)
        return 2 * self.behind < total or total == 2

    def of_several(self) -> _Note | None:
        """Return the note for ranks that no line names, or that have other numbers in the job."""
        if not self.behind or self.operation in _OF_PAIRS or (self.is_world and self.are_few_behind):
            return None
        launched = max(part for part in self.parts if part[1] < self.most)[1]
        named = [process for count, process in self.processes if count < self.most]
        of_part = "" if self.is_world else f" of communicator {self.group}"
        several = f"{self.behind} of {sum(ranks for ranks, _ in self.parts)} ranks{of_part}"
        if named and self.are_few_behind:
            several = f"{', '.join(named)}{of_part}"
        return _Note(None, "", launched, self.most, self.operation, several)


class _Text:
    def __init__(self, text: str) -> None:
        self.counts = [_Counts("", is_world=True)]
        #: By operation of the largest communicator: the counts of named ranks, and of ranks without names.
        self.named: dict[str, dict[int, int]] = defaultdict(dict)
        self.unnamed: dict[str, list[int]] = defaultdict(list)
        self._dead = set(_DEAD.findall(text)) if "considered dead" in text else set()
        self._sizes: dict[str, int] = {}
        self._apart: set[str] = set()  # groups of several communicators with different ranks
        self._group = ""
        self.answer = 0
        self._error = ""
        self._is_world = True
        self._launched = 0

    def note(self, line: str) -> _Note | None:
        """Return a note on the rank that the line names, or on the counts that follow it."""
        if self._where(line):
            return _Note(None, _HEADER)
        if one := _ONE.match(line):
            self.counts[-1].parts.append((1, int(one[2] or 0)))
            return self._count(line, int(one[1]), int(one[2] or 0))
        if rank := _RANK.match(line):
            if self._error == "MISMATCH":
                if self._launched in self.unnamed[self.counts[-1].operation]:
                    self.unnamed[self.counts[-1].operation].remove(self._launched)
                return self._count(line, int(rank[1]), self._launched)
            state = "dead" if (rank[2], rank[3]) in self._dead else "unresponsive"
            return _Note(int(rank[1]), state) if self._error == "INCOMPLETE" and self._is_world else None
        if _DEAD.match(line.strip()) and self._error in ("DEAD", "INCOMPLETE"):
            return _Note(None, "dead" if self._error == "DEAD" else "unresponsive")
        return None

    def judged(self, note: _Note | None, block: int, answer: int) -> _Note | None:
        """Return the note with the counts of its block, or None if the rank is not behind or most ranks are."""
        if note is None or note.state not in ("", _HEADER):
            return note
        counts = self.counts[block]
        if note.state:
            several = counts.of_several()
            return several and several._replace(group=counts.group, answer=answer)
        is_named = note.launched < counts.most and counts.are_few_behind and counts.operation not in _OF_PAIRS
        return note._replace(most=counts.most, group=counts.group, answer=answer) if is_named else None

    def _where(self, line: str) -> bool:
        if line.strip() == "Job summary":
            self.answer += 1
            self._sizes, self._apart = {}, set()
        elif row := _TABLE_ROW.match(line):
            self._sizes[row[1]] = int(row[3])
            self._apart |= {row[1]} if int(row[4]) > int(row[3]) else set()
        elif block := _BLOCK.match(line):
            largest = max(self._sizes.values(), default=0)
            self._is_world = self._sizes.get(block[1], 0) == largest and block[1] not in self._apart
            self._error, self._group = block[2], block[0].split()[0]
        elif line.strip() in ("DEAD", "INCOMPLETE", "TIMEOUT"):
            self._error, self._is_world = line.strip(), True
        elif of := _OF.search(line):
            self.counts.append(_Counts(of[1], self._group, is_world=self._is_world))
            return True
        elif several := _SEVERAL.match(line):
            self._launched = int(several[2] or 0)
            self.counts[-1].parts.append((int(several[1]), self._launched))
            if self._is_world:
                self.unnamed[self.counts[-1].operation].append(self._launched)
        return False

    def _count(self, line: str, rank: int, launched: int) -> _Note | None:
        counts = self.counts[-1]
        if managed := _MANAGED.search(line):
            counts.processes.append((launched, managed[1]))
        if self._is_world:
            self.named[counts.operation][rank] = launched
        return _Note(rank, "", launched, 0, counts.operation) if self._is_world else None


def _text_of_json(text: str) -> str:
    decoder = json.JSONDecoder()
    text = _NO_COMMA.sub(r"\1,\2", text)
    lines: list[str] = []
    at = text.find("{")
    while at >= 0:
        try:
            answer, end = decoder.raw_decode(text, at)
            lines += _of_answer(answer)
        except OTHER_SHAPE as error:
            raise ValueError("it is not a valid answer of NCCL RAS, or it is truncated") from error
        at = text.find("{", end)
    return "\n".join(lines)


def _of_answer(answer: dict[str, Any]) -> Iterator[str]:
    groups = answer["communicators"]
    yield "Job summary"
    members: dict[int, set[tuple[Any, ...]]] = defaultdict(set)  # processes, by the size of their communicators
    for group in groups:
        members[int(group["size"])] |= {(rank.get("host"), rank.get("pid")) for rank in group.get("ranks", ())}
    for number, group in enumerate(groups):
        size = int(group["size"])
        yield f"{number:5d} 1 1 1 {size:7d} {max(size, len(members[size]))} RUNNING"
    for number, group in enumerate(groups):
        absent = group.get("missing_ranks", ())
        dead = [rank for rank in absent if rank.get("status", {}).get("considered_dead")]
        yield from ["DEAD", *(f"  {_process(rank)} is considered dead" for rank in dead)] if dead else ()
        yield from [f"#{number}-0 (0) INCOMPLETE", *map(_line, absent)] if absent else ()
        by_rank = {int(rank["rank"]): rank for rank in group.get("ranks", ())}
        counts: dict[str, dict[int, int]] = defaultdict(dict)
        for rank, of_rank in by_rank.items():
            for operation, count in of_rank.get("collective_counts", {}).items():
                counts[str(operation)][rank] = int(count)
        for operation, launched in counts.items():
            parts = sorted(grouped((count, rank) for rank, count in launched.items()).items(), key=lambda p: -len(p[1]))
            if len(parts) > 1:
                yield f"#{number}-0 (0) MISMATCH"
                yield f"  Communicator ranks have different {operation} operation counts"
            for count, ranks in parts if len(parts) > 1 else ():
                yield f"  {len(ranks)} ranks have launched up to operation {count}"
                # RAS lists the smaller sets.
                yield from (
                    _line(by_rank[rank]) for rank in ranks if 2 * len(ranks) < len(launched) or len(launched) == 2
                )


def _process(rank: dict[str, Any]) -> str:
    return f"Process {rank.get('pid')} on node {rank.get('host')} managing GPU {rank.get('cuda_dev')}"


def _line(rank: dict[str, Any]) -> str:
    process = f"process {rank.get('pid')} on node {rank.get('host')}"
    return f"  Rank {rank['rank']} -- GPU {rank.get('cuda_dev')} managed by {process}"
