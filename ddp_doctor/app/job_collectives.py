"""Read the files of ``run --collectives-of``: each rank's collectives, from dumps or from a recording of traces."""

from collections import Counter
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path

from ddp_doctor.app.outcome import UsageError
from ddp_doctor.app.recordings import recording_in
from ddp_doctor.engine.waits.from_dumps import DumpSet, groups_of, sets_of
from ddp_doctor.facts.given import FlightDumpFact
from ddp_doctor.features import features_in, recorded
from ddp_doctor.knowledge.job_collectives import ALIKE, MOST_CALLS, MOST_GROUPS, OPERATIONS, TYPES
from ddp_doctor.model.base import grouped
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.job_collectives import JobCall, JobCollectives, JobGroup
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.file_kinds import is_recording
from ddp_doctor.parse.flight_recorder import RecordedCall, is_dump, read_dump, recorded_calls
from ddp_doctor.sources.job_files import job_files

_LARGEST_FILE_BYTES = 256 << 20
_WANTED = "expected dumps of torch's flight recorder, or a recording written with `ddp-doctor trace PATH --record FILE`"
#: No tensor is larger; a replay cuts them down much further.
MOST_ELEMENTS = 1 << 40


def load_job_collectives(path: str) -> JobCollectives:
    """Return the collectives of the job in a file, directory or archive. Raises UsageError."""
    dumps = list[FlightDumpFact]()
    calls = dict[str, tuple[RecordedCall, ...]]()
    recordings, collectives = list[Recording](), None
    other = ""
    for file in job_files([path]):
        if not file.head or not (is_dump(file.head, file.name) or is_recording(file.head)):
            other = other or file.unread or ""
            continue
        data = file.all(_LARGEST_FILE_BYTES) or b""
        if is_recording(file.head):
            recording = recording_in(Path(file.name), data)
            if found := [of for each in features_in(recording) if (of := each.collectives) is not None]:
                collectives = found[0]
                recordings.append(recording)
            continue
        dumps.append(read_dump(data, file.name, file.modified_s))
        other = other or dumps[-1].problem or ""
        if dumps[-1].problem is None:
            calls[file.name] = recorded_calls(data, file.modified_s)
    if not any(calls.values()) and collectives is None:
        if dumps and not other:
            raise UsageError(f"{quoted(path)} has no collective to replay: no rank's flight recorder contains one")
        raise UsageError(f"{quoted(path)} has no collective to replay{f' ({other})' if other else ''}; {_WANTED}")
    if len(dumps) == 1 and dumps[0].rank is None:  # its file was renamed
        dumps = [dumps[0].model_copy(update={"rank": 0})]
    jobs = sets_of(dumps, None)
    if not jobs and collectives is None:
        raise UsageError(
            f"the file names in {quoted(path)} do not show the rank; name the files rank0.json, rank1.json, ..."
        )
    if (count := len(jobs) + (collectives is not None)) > 1:
        raise UsageError(f"{quoted(path)} has ranks of {count} jobs; give the files of only one job")
    return _of_dumps(path, jobs[0], calls) if collectives is None else collectives(path, recordings)


def replayable(
    path: str,
    world: int,
    groups: list[JobGroup],
    calls: Mapping[int, list[JobCall]],
    wrapped: set[int],
    left_out: Counter[str],
    **known: object,
) -> JobCollectives:
    """Return what can be replayed of the calls of each known rank; ``wrapped`` are ranks whose first calls may be lost.

    Raises UsageError if no call is left.
    """
    most = max(MOST_CALLS // world, 1)
    if cut := {rank: len(of_rank) - most for rank, of_rank in calls.items() if len(of_rank) > most}:
        left_out[f"calls before the last {most} of each rank"] += sum(cut.values())
    last = {rank: of_rank[-most:] for rank, of_rank in calls.items()}
    lists = _agreed(_that_all_kept(groups, last, wrapped | cut.keys()))
    if not any(lists.values()):
        raise UsageError(
            f"cannot replay {quoted(path)}: no collective in it was recorded by all ranks of a group; give the dumps of"
            " all ranks"
        )
    kept = {call.group for of_rank in lists.values() for call in of_rank}
    is_open = {call.group for of_rank in lists.values() for call in of_rank if call.is_open}
    made = set(sorted(kept, key=lambda index: (index not in is_open, index))[:MOST_GROUPS])
    for call in (call for of_rank in last.values() for call in of_rank if call.group not in made):
        why = f"all groups but {MOST_GROUPS}"
        if call.group not in kept:
            why = f"{groups[call.group].words}, which not all its ranks have kept"
        left_out[f"calls of {why}"] += 1
    lists = {rank: [call for call in of_rank if call.group in made] for rank, of_rank in lists.items()}
    unknown = [rank for rank in range(world) if rank not in lists]
    first = [call.model_copy(update={"is_open": False}) for call in next(iter(lists.values()))]
    members = {index: set(groups[index].ranks) for index in made}
    lists |= {rank: [call for call in first if rank in members[call.group]] for rank in unknown}
    return JobCollectives(
        path=path,
        groups=tuple(groups),
        ranks=tuple(tuple(lists[rank]) for rank in range(world)),
        unknown=tuple(unknown),
        left_out=dict(left_out),
        **known,  # type: ignore[arg-type]  # the fields of one source
    )


def _that_all_kept(
    groups: list[JobGroup], calls: Mapping[int, list[JobCall]], wrapped: Collection[int]
) -> dict[int, list[JobCall]]:
    """Return each group's calls from the first to the last number that all its ranks have, and open calls.

    A completed collective has met all ranks, so a rank that lacks it was recorded earlier.
    """
    numbers = {rank: grouped(call.place for call in of_rank) for rank, of_rank in calls.items()}
    is_open = {call.place for of_rank in calls.values() for call in of_rank if call.is_open}
    ended = grouped({call.place for of_rank in calls.values() for call in of_rank} - is_open)
    first, last = dict[int, int](), dict[int, int]()
    for index, group in enumerate(groups):
        seen = {rank: numbers[rank].get(index, []) for rank in calls if rank in group.ranks}
        lost = max(ended.get(index, [0])) + 1  # of a rank that has lost all of them
        first[index] = max((min(of, default=lost) for rank, of in seen.items() if rank in wrapped), default=0)
        entries = {of.count(first[index]) for of in seen.values()}  # several were coalesced: some of them may be lost
        first[index] += len(entries) > 1 and 0 not in entries
        last[index] = min((max(of, default=0) for of in seen.values()), default=0)

    def is_kept(call: JobCall) -> bool:
        return first[call.group] <= call.seq and (call.seq <= last[call.group] or call.place in is_open)

    return {rank: list(filter(is_kept, of_rank)) for rank, of_rank in calls.items()}


def _agreed(calls: Mapping[int, list[JobCall]]) -> dict[int, list[JobCall]]:
    """Return the same calls, with values that only all ranks of a group together show."""
    by_place = grouped((call.place, (rank, call)) for rank, of_rank in calls.items() for call in of_rank)
    known = dict[tuple[int, int], dict[str, object]]()
    for place, same in by_place.items():
        by_rank = grouped((rank, (call.op, call.op in ALIKE and (call.elements, call.dtype))) for rank, call in same)
        differs = any(sides != by_rank[same[0][0]] for sides in by_rank.values())
        known[place] = {"differs": differs, "root": max(call.root for _, call in same)}
        if not differs and same[0][1].op not in ALIKE:  # how an uneven one was split is not recorded
            known[place]["elements"] = max(call.elements for _, call in same)
    return {rank: [call.model_copy(update=known[call.place]) for call in of_rank] for rank, of_rank in calls.items()}


# --- of dumps -----------------------------------------------------------------------------------------------


def _of_dumps(path: str, job: DumpSet, kept: Mapping[str, tuple[RecordedCall, ...]]) -> JobCollectives:
    if len(job.dumps) == 1 and not job.world_is_known:
        raise UsageError(f"{quoted(path)} does not show how many ranks the job had; give the dumps of all ranks")
    groups, guessed, left_out = list[JobGroup](), list[int](), Counter[str]()
    places, calls = dict[tuple[int, str], tuple[int, int | None]](), dict[int, list[JobCall]]()
    for group, seen in groups_of(job):
        guessed += [] if group.members_are_known else [len(groups)]
        members = sorted({*group.members} & {*job.world})
        place_of = {rank: place for place, rank in enumerate(members)}
        places |= {(rank, group.name): (len(groups), place_of.get(rank)) for rank in seen}
        groups.append(JobGroup(words=group.words, ranks=tuple(members)))
    for rank, dump in sorted(job.dumps.items()):
        of_rank = calls[rank] = []
        for each in kept[dump.file]:
            (index, place), op = places[rank, each.entry.group], OPERATIONS.get(each.entry.op)
            if op is None or each.is_transfer:
                left_out[each.entry.op] += each.entry.op != "coalesced"  # coalesced collectives have their own entries
            elif place is None:
                left_out[f"{op} of rank {rank}, which is not in {groups[index].words}"] += 1
            else:
                of_rank.append(_call(each, op, index, place))
    for index in guessed:
        waiting = Counter(call.seq for of in calls.values() for call in of if call.group == index and call.is_open)
        if len(groups[index].ranks) in waiting.values():
            left_out[f"{groups[index].words}, in which all ranks wait that ever called it"] += 1
    wrapped = {rank for rank, dump in job.dumps.items() if any(group.wrapped for group in dump.groups)}
    facts = (*job.dumps.values(), *job.unread.values())
    readings = tuple(fact.collected("logs") for fact in facts)
    known = dict[str, object]()
    for cause in recorded("logs").waits(Recording(readings=readings)):
        blamed = [culprit.rank for culprit in cause.culprits if culprit.rank is not None]
        known = {"says": cause.detail, "blamed": blamed, "confidence": cause.confidence}
    return replayable(path, len(job.world), groups, calls, wrapped, +left_out, source="the dumps", **known)


def _call(recorded: RecordedCall, op: str, group: int, place: int) -> JobCall:
    """Return a call; ``place`` is the rank's index in its group."""
    entry = recorded.entry
    given = recorded.taken if op == "scatter" else entry.sizes
    elements = sum(prod(max(length, 0) for length in size) for size in given)
    is_root = (op == "gather" and bool(recorded.taken)) or (op == "scatter" and bool(entry.sizes))
    return JobCall(
        group=group,
        seq=entry.seq,
        op=op,
        elements=min(elements, MOST_ELEMENTS),
        dtype=TYPES.get(entry.dtypes[0].lower() if entry.dtypes else "float", ("uint8", 1))[0],
        root=place if is_root else 0,
        is_open=entry.is_open,
    )
