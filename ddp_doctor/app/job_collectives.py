"""What ``run --replay`` takes of a job: the collectives of each rank, from dumps of the flight recorder or traces."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import NamedTuple

from ddp_doctor.app.outcome import UsageError
from ddp_doctor.app.recordings import recording_in
from ddp_doctor.engine.causes.wait_graph import judged
from ddp_doctor.engine.waits.from_dumps import DumpSet, groups_of, sets_of
from ddp_doctor.facts.job_log import FlightDumpFact
from ddp_doctor.facts.trace import TraceFact
from ddp_doctor.knowledge.job_collectives import ALIKE, MOST_CALLS, OPERATIONS, TYPES
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.job_collectives import JobCall, JobCollectives, JobGroup
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.flight_recorder import RecordedCall, is_dump, read_dump, recorded_calls
from ddp_doctor.parse.job_log.kinds_of_files import is_recording
from ddp_doctor.sources.job_files import JobFile, job_files

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
        if file.head and is_dump(file.head, file.name):
            fact = _dump(file, calls)
            dumps.append(fact)
            other = other or fact.problem or ""
        elif file.head and is_recording(file.head):
            recording = recording_in(Path(file.name), file.all(_LARGEST_FILE_BYTES) or b"")
            traces += [at.fact for at in recording.facts(TraceFact)]
        else:
            other = other or file.unread or ""
    if not any(calls.values()) and not traces:
        if dumps and not other:
            raise UsageError(f"{path} has no collective to replay: the recorder of no rank kept any")
        raise UsageError(f"{path} has no collective to replay{f' ({other})' if other else ''}; {_WANTED}")
    jobs = sets_of([fact if len(dumps) > 1 else _with_a_rank(fact) for fact in dumps], None)
    if len(jobs) + bool(traces) > 1:
        raise UsageError(f"{path} has the ranks of {len(jobs) + bool(traces)} jobs; give the files of one of them")
    job = _of_dumps(jobs[0], calls) if jobs else _of_traces(traces)
    return job.collectives(path)


def _dump(file: JobFile, calls: dict[str, tuple[RecordedCall, ...]]) -> FlightDumpFact:
    data = file.all(_LARGEST_FILE_BYTES) or b""
    fact = read_dump(data, file.name, file.modified_s)
    if fact.problem is None:
        calls[file.name] = recorded_calls(data, file.modified_s)
    return fact


def _with_a_rank(fact: FlightDumpFact) -> FlightDumpFact:
    return fact if fact.rank is not None else fact.model_copy(update={"rank": 0})


class _Call(NamedTuple):
    """A call of a rank, and whether it is the one that gives, or takes, the parts of all."""

    call: JobCall
    is_root: bool = False


@dataclass
class _Job:
    """The calls of each rank that is known, before they are cut to what all have kept."""

    source: str
    world: int | None
    groups: list[JobGroup]
    calls: dict[int, list[_Call]]
    wrapped: frozenset[int] = frozenset()  # ranks whose first calls may have been overwritten
    left_out: Counter[str] = field(default_factory=Counter)
    says: str = ""
    blamed: tuple[int, ...] = ()

    def collectives(self, path: str) -> JobCollectives:
        """What is replayed. Raises UsageError where nothing is left."""
        most = max(MOST_CALLS // max(self.world or 1, 1), 1)
        cut = {rank for rank, of_rank in self.calls.items() if len(of_rank) > most}
        calls = {rank: of_rank[-most:] for rank, of_rank in self.calls.items()}
        calls = self._that_all_kept(calls, self.wrapped | cut)
        lists = _agreed({rank: [each.call for each in of_rank] for rank, of_rank in calls.items()}, _roots(calls))
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
        )

    def _that_all_kept(self, calls: dict[int, list[_Call]], wrapped: frozenset[int]) -> dict[int, list[_Call]]:
        """From the first number of a group that all its ranks have; without those of which a later dump alone tells.

        A collective that nobody waits for any more has met all ranks, so a rank that lacks it was recorded before.
        """
        numbers = {rank: grouped((each.call.group, each.call.seq) for each in calls[rank]) for rank in calls}
        is_open = {each.call.place for of_rank in calls.values() for each in of_rank if each.call.is_open}
        ended = grouped(
            place for of_rank in calls.values() for each in of_rank if (place := each.call.place) not in is_open
        )
        first, last = dict[int, int](), dict[int, int]()
        for index, group in enumerate(self.groups):
            members = [rank for rank in calls if not group.ranks or rank in group.ranks]
            seen = [numbers[rank].get(index, []) for rank in members]
            lost = max(ended.get(index, [0])) + 1  # of a rank that has none of them left
            first[index] = max(
                (min(of, default=lost) for rank, of in zip(members, seen, strict=True) if rank in wrapped), default=0
            )
            last[index] = min((max(of, default=0) for of in seen), default=0)
        return {
            rank: [
                each
                for each in of_rank
                if each.call.seq >= first[each.call.group]
                and (each.call.seq <= last[each.call.group] or each.call.place in is_open)
            ]
            for rank, of_rank in calls.items()
        }


def _roots(calls: Mapping[int, Sequence[_Call]]) -> dict[tuple[int, int], int]:
    return {each.call.place: rank for rank, of_rank in calls.items() for each in of_rank if each.is_root}


def _agreed(calls: Mapping[int, list[JobCall]], roots: Mapping[tuple[int, int], int]) -> dict[int, list[JobCall]]:
    """The same calls, with what only all ranks of a group tell of each."""
    by_place = grouped((call.place, call) for of_rank in calls.values() for call in of_rank)
    known = dict[tuple[int, int], dict[str, object]]()
    for place, same in by_place.items():
        sides = {(call.op, call.op in ALIKE and (call.elements, call.dtype)) for call in same}
        known[place] = {"differs": len(sides) > 1, "root": roots.get(place)}
        if len(sides) == 1 and same[0].op not in ALIKE:  # how an uneven one was split is not recorded
            known[place]["elements"] = max(call.elements for call in same)
    return {rank: [call.model_copy(update=known[call.place]) for call in of_rank] for rank, of_rank in calls.items()}


# --- of dumps -----------------------------------------------------------------------------------------------


def _of_dumps(job: DumpSet, calls: Mapping[str, tuple[RecordedCall, ...]]) -> _Job:
    alone = len(job.dumps) == 1
    world = len(job.world) if job.world_is_known or not alone else None
    found = _Job("the dumps", world, [], {rank: [] for rank in sorted(job.dumps)})
    index_of = dict[tuple[int, str], int]()
    for group, seen in groups_of(job):
        is_default = group.members == job.world or group.words == "the default group"
        if is_default or group.members_are_known or not alone:
            index_of |= {(rank, group.name): len(found.groups) for rank in seen}
            members = () if is_default else tuple(rank for rank in group.members if rank >= 0)
            found.groups.append(JobGroup(words=group.words, ranks=members))
            found.world = max(found.world or 0, max(members, default=-1) + 1) or None
    for rank, dump in sorted(job.dumps.items()):
        for recorded in calls[dump.file]:
            group_index = index_of.get((rank, recorded.entry.group))
            op = OPERATIONS.get(recorded.entry.op)
            if op is None or recorded.is_transfer or group_index is None:
                if recorded.entry.op != "coalesced":  # what was coalesced has entries of its own
                    found.left_out[
                        recorded.entry.op if group_index is not None else f"calls of group {recorded.entry.group}"
                    ] += 1
                continue
            _add(found.calls[rank], _call(recorded, op, group_index))
    found.wrapped = frozenset(rank for rank, dump in job.dumps.items() if any(group.wrapped for group in dump.groups))
    facts = (*job.dumps.values(), *job.unread.values())
    readings = tuple(Reading(check="logs", status=Status.COLLECTED, fact=fact.recorded()) for fact in facts)
    for cause in judged(Recording(readings=readings)):
        found.says = cause.detail
        found.blamed = tuple(culprit.rank for culprit in cause.culprits if culprit.rank is not None)
    return found


def _call(recorded: RecordedCall, op: str, group: int) -> _Call:
    entry = recorded.entry
    given = recorded.taken if op == "scatter" else entry.sizes
    elements = sum(prod(max(length, 0) for length in size) for size in given)
    dtype, _ = TYPES.get(entry.dtypes[0].lower() if entry.dtypes else "float", ("uint8", 1))
    is_root = (op == "gather" and bool(recorded.taken)) or (op == "scatter" and bool(entry.sizes))
    call = JobCall(
        group=group, seq=entry.seq, op=op, elements=min(elements, _MOST_ELEMENTS), dtype=dtype, is_open=entry.is_open
    )
    return _Call(call, is_root)


def _add(calls: list[_Call], new: _Call) -> None:
    """Calls that were coalesced have one number, and meet as one."""
    last = calls[-1].call if calls else None
    if last is None or (last.place, last.op) != (new.call.place, new.call.op):
        calls.append(new)
        return
    together = {"elements": last.elements + new.call.elements, "is_open": last.is_open or new.call.is_open}
    calls[-1] = _Call(last.model_copy(update=together), calls[-1].is_root)


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
            words=f"group {name}" if name else "the default group",
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
            found.calls[rank].append(
                _Call(JobCall(group=names[call.group], seq=seq, op=op, elements=elements, dtype=dtype))
            )
    return found
