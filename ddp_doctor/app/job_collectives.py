"""What ``run --replay`` takes of a job: the collectives of each rank, from dumps of the flight recorder or traces."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from ddp_doctor.app.outcome import UsageError
from ddp_doctor.app.recordings import recording_in
from ddp_doctor.engine.causes.wait_graph import judged
from ddp_doctor.engine.waits.from_dumps import DumpSet, groups_of, sets_of
from ddp_doctor.facts.job_log import FlightDumpFact
from ddp_doctor.facts.trace import TraceFact
from ddp_doctor.knowledge.job_collectives import ALIKE, MOST_CALLS, OPERATIONS, TYPES
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.job_collectives import JobCall, JobCollectives, JobGroup
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.flight_recorder import RecordedCall, is_dump, read_dump, recorded_calls
from ddp_doctor.parse.job_log.kinds_of_files import is_recording
from ddp_doctor.sources.job_files import job_files

_LARGEST_FILE_BYTES = 256 << 20
_WANTED = (
    "--replay takes dumps of torch's flight recorder, or a recording of `trace`: ddp-doctor trace PATH --record FILE"
)
#: No tensor is larger; a replay cuts them down much further.
_MOST_ELEMENTS = 1 << 40


def load_job_collectives(path: str) -> JobCollectives:
    """The collectives of the job that a path tells of: a file, a folder, an archive. Raises UsageError."""
    dumps = list[FlightDumpFact]()
    calls = dict[str, tuple[RecordedCall, ...]]()
    traces = list[TraceFact]()
    other = ""
    for file in job_files([path]):
        if not file.head or not (is_dump(file.head, file.name) or is_recording(file.head)):
            other = other or file.unread or ""
            continue
        data = file.all(_LARGEST_FILE_BYTES) or b""
        if is_recording(file.head):
            traces += [at.fact for at in recording_in(Path(file.name), data).facts(TraceFact)]
            continue
        dumps.append(read_dump(data, file.name, file.modified_s))
        other = other or dumps[-1].problem or ""
        if dumps[-1].problem is None:
            calls[file.name] = recorded_calls(data, file.modified_s)
    if not any(calls.values()) and not traces:
        if dumps and not other:
            raise UsageError(f"{path} has no collective to replay: the recorder of no rank kept any")
        raise UsageError(f"{path} has no collective to replay{f' ({other})' if other else ''}; {_WANTED}")
    if len(dumps) == 1 and dumps[0].rank is None:  # its file was given another name
        dumps = [dumps[0].model_copy(update={"rank": 0})]
    jobs = sets_of(dumps, None)
    if len(jobs) + bool(traces) > 1:
        raise UsageError(f"{path} has the ranks of {len(jobs) + bool(traces)} jobs; give the files of one of them")
    return (_of_dumps(jobs[0], calls) if jobs else _of_traces(traces)).collectives(path)


@dataclass
class _Job:
    """The calls of each rank that is known, before they are cut to what all have kept."""

    source: str
    world: int | None
    groups: list[JobGroup]
    calls: dict[int, list[JobCall]]
    wrapped: frozenset[int] = frozenset()  # ranks whose first calls may have been overwritten
    left_out: Counter[str] = field(default_factory=Counter)
    says: str = ""
    blamed: tuple[int, ...] = ()
    confidence: Confidence = Confidence.PROVED

    def collectives(self, path: str) -> JobCollectives:
        """What is replayed. Raises UsageError where nothing is left."""
        most = max(MOST_CALLS // max(self.world or 1, 1), 1)
        cut = {rank for rank, of_rank in self.calls.items() if len(of_rank) > most}
        lists = _agreed(self._that_all_kept(most, self.wrapped | cut))
        if not any(lists.values()):
            raise UsageError(f"{path} has no collective that all ranks of its group have kept: nothing can be replayed")
        first = next(iter(lists.values()))
        unknown = tuple(rank for rank in range(self.world or 0) if rank not in lists)
        for rank in unknown:
            of_rank = (call for call in first if not (ranks := self.groups[call.group].ranks) or rank in ranks)
            lists[rank] = [call.model_copy(update={"is_open": False}) for call in of_rank]
        return JobCollectives(
            path=path,
            source=self.source,
            world=self.world,
            groups=tuple(self.groups),
            ranks=tuple(tuple(lists[rank]) for rank in (range(self.world) if self.world is not None else lists)),
            unknown=unknown,
            left_out=dict(self.left_out),
            says=self.says,
            blamed=self.blamed,
            confidence=self.confidence,
        )

    def _that_all_kept(self, most: int, wrapped: frozenset[int]) -> dict[int, list[JobCall]]:
        """From the first number of a group that all its ranks have; without those of which a later dump alone tells.

        A collective that nobody waits for any more has met all ranks, so a rank that lacks it was recorded before.
        """
        calls = {rank: of_rank[-most:] for rank, of_rank in self.calls.items()}
        numbers = {rank: grouped(call.place for call in of_rank) for rank, of_rank in calls.items()}
        is_open = {call.place for of_rank in calls.values() for call in of_rank if call.is_open}
        ended = grouped({call.place for of_rank in calls.values() for call in of_rank} - is_open)
        first, last = dict[int, int](), dict[int, int]()
        for index, group in enumerate(self.groups):
            seen = {rank: numbers[rank].get(index, []) for rank in calls if not group.ranks or rank in group.ranks}
            lost = max(ended.get(index, [0])) + 1  # of a rank that has none of them left
            first[index] = max((min(of, default=lost) for rank, of in seen.items() if rank in wrapped), default=0)
            last[index] = min((max(of, default=0) for of in seen.values()), default=0)

        def is_kept(call: JobCall) -> bool:
            return first[call.group] <= call.seq and (call.seq <= last[call.group] or call.place in is_open)

        return {rank: list(filter(is_kept, of_rank)) for rank, of_rank in calls.items()}


def _agreed(calls: Mapping[int, list[JobCall]]) -> dict[int, list[JobCall]]:
    """The same calls, with what only all ranks of a group tell of each."""
    by_place = grouped((call.place, call) for of_rank in calls.values() for call in of_rank)
    known = dict[tuple[int, int], dict[str, object]]()
    for place, same in by_place.items():
        sides = {(call.op, call.op in ALIKE and (call.elements, call.dtype)) for call in same}
        roots = [call.root for call in same if call.root is not None]
        known[place] = {"differs": len(sides) > 1, "root": roots[0] if roots else None}
        if len(sides) == 1 and same[0].op not in ALIKE:  # how an uneven one was split is not recorded
            known[place]["elements"] = max(call.elements for call in same)
    return {rank: [call.model_copy(update=known[call.place]) for call in of_rank] for rank, of_rank in calls.items()}


# --- of dumps -----------------------------------------------------------------------------------------------


def _of_dumps(job: DumpSet, calls: Mapping[str, tuple[RecordedCall, ...]]) -> _Job:
    alone = len(job.dumps) == 1
    world = len(job.world) if job.world_is_known or not alone else None
    found = _Job("the dumps", world, [], {rank: [] for rank in sorted(job.dumps)})
    index_of, guessed = dict[tuple[int, str], int](), list[int]()
    for group, seen in groups_of(job):
        is_default = group.members == job.world or group.words == "the default group"
        if is_default or group.members_are_known or not alone:
            guessed += [] if is_default or group.members_are_known else [len(found.groups)]
            index_of |= {(rank, group.name): len(found.groups) for rank in seen}
            members = () if is_default else tuple(rank for rank in group.members if rank >= 0)
            found.groups.append(JobGroup(words=group.words, ranks=members))
            found.world = max(found.world or 0, max(members, default=-1) + 1) or None
    for rank, dump in sorted(job.dumps.items()):
        for recorded in calls[dump.file]:
            group_index, op = index_of.get((rank, recorded.entry.group)), OPERATIONS.get(recorded.entry.op)
            if group_index is None:
                found.left_out[f"calls of group {recorded.entry.group}, whose ranks are not known"] += 1
            elif op is not None and not recorded.is_transfer:
                _add(found.calls[rank], _call(recorded, op, group_index, rank))
            elif recorded.entry.op != "coalesced":  # what was coalesced has entries of its own
                found.left_out[recorded.entry.op] += 1
    for index in guessed:
        waiting = Counter(
            call.seq for of in found.calls.values() for call in of if call.group == index and call.is_open
        )
        if len(found.groups[index].ranks) in waiting.values():
            found.left_out[f"{found.groups[index].words}, in which all ranks wait that ever called it"] += 1
    found.wrapped = frozenset(rank for rank, dump in job.dumps.items() if any(group.wrapped for group in dump.groups))
    facts = (*job.dumps.values(), *job.unread.values())
    readings = tuple(Reading(check="logs", status=Status.COLLECTED, fact=fact.recorded()) for fact in facts)
    for cause in judged(Recording(readings=readings)):
        found.says, found.confidence = cause.detail, cause.confidence
        found.blamed = tuple(culprit.rank for culprit in cause.culprits if culprit.rank is not None)
    return found


def _call(recorded: RecordedCall, op: str, group: int, rank: int) -> JobCall:
    entry = recorded.entry
    given = recorded.taken if op == "scatter" else entry.sizes
    elements = sum(prod(max(length, 0) for length in size) for size in given)
    is_root = (op == "gather" and bool(recorded.taken)) or (op == "scatter" and bool(entry.sizes))
    return JobCall(
        group=group,
        seq=entry.seq,
        op=op,
        elements=min(elements, _MOST_ELEMENTS),
        dtype=TYPES.get(entry.dtypes[0].lower() if entry.dtypes else "float", ("uint8", 1))[0],
        root=rank if is_root else None,
        is_open=entry.is_open,
    )


def _add(calls: list[JobCall], new: JobCall) -> None:
    """Calls that were coalesced have one number, and meet as one."""
    if calls and (calls[-1].place, calls[-1].op) == (new.place, new.op):
        last = calls.pop()
        together = {"elements": last.elements + new.elements, "is_open": last.is_open or new.is_open}
        new = new.model_copy(update=together)
    calls.append(new)


# --- of traces ----------------------------------------------------------------------------------------------


def _of_traces(traces: Sequence[TraceFact]) -> _Job:
    """The last window of each rank. A trace shows collectives that have ended; few of them have a number."""
    of_rank = {fact.rank or 0: fact for fact in traces}
    sizes = {fact.world_size for fact in of_rank.values() if fact.world_size}
    world = max(sizes, default=max(of_rank) + 1)
    members = defaultdict[str, set[int]](set)
    whole = set[str]()
    for rank, fact in of_rank.items():
        for call in fact.calls:
            members[call.group].add(rank)
            if call.ranks in (None, world):
                whole.add(call.group)
    names = {name: index for index, name in enumerate(sorted(members))}
    groups = [
        JobGroup(
            words="the default group" if name in ("", "0") else f"group {name}",
            ranks=() if name in whole else tuple(sorted(members[name])),
        )
        for name in names
    ]
    found = _Job("the trace", world, groups, {rank: [] for rank in sorted(of_rank)}, frozenset(of_rank))
    for rank, fact in of_rank.items():
        counted = Counter[str]()
        for call in sorted(fact.calls, key=lambda call: call.begin_us if call.called_us is None else call.called_us):
            counted[call.group] += 1
            op = OPERATIONS.get(call.kind)
            if op is None or (call.size_bytes is None and op != "barrier"):
                found.left_out[call.kind] += 1
                continue
            dtype, size = TYPES.get(call.dtype.lower(), ("uint8", 1))
            seq = counted[call.group] if call.seq is None else call.seq
            elements = min((call.size_bytes or 0) // size, _MOST_ELEMENTS)
            found.calls[rank].append(JobCall(group=names[call.group], seq=seq, op=op, elements=elements, dtype=dtype))
    return found
