"""Where ranks stand by the dumps of torch's flight recorder: a rank waits in the first open collective of a group."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ddp_doctor.engine.waits.dump_sets import DumpSet
from ddp_doctor.engine.waits.standings import Call, Group, Standing, Wait
from ddp_doctor.facts.job_log import FlightDumpFact, GroupSeen
from ddp_doctor.model.base import grouped
from ddp_doctor.model.trial import FlightEntry

#: Ranks of a group give these as many numbers; other collectives may take other shapes on each rank.
_ALIKE = ("all_reduce", "allreduce_coalesced", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")
#: A process group over all dumps: what each of its ranks has of it.
_Seen = Mapping[int, GroupSeen]


def standings_of(job: DumpSet, hosts: Mapping[int, str]) -> list[Standing]:
    """One for each rank, those with a dump first; of one without nothing is known."""
    groups = _groups(job)
    waits: dict[int, list[Wait]] = defaultdict(list)
    for group, seen in groups:
        for wait in _waits(job, group, seen):
            call = f"{group.name}:{wait.call.seq}"
            queue = job.dumps[wait.rank].open_order
            waits[wait.rank].append(wait._replace(place=queue.index(call) if call in queue else len(queue)))
    for wait in _transfers(job, groups):
        waits[wait.rank].append(wait)
    missing = [rank for of_rank in waits.values() for wait in of_rank for rank in sorted(wait.missing)]
    in_use = {wait.call.group for of_rank in waits.values() for wait in of_rank}
    calls: dict[int, list[Call]] = defaultdict(list)
    for group, seen in groups:
        if group in in_use:
            for rank, of_rank in seen.items():
                by_number = grouped((entry.seq, entry) for entry in of_rank.entries)
                calls[rank].extend(_call(group, entries) for entries in by_number.values())
    return [
        Standing(
            rank,
            "waits" if waits[rank] else "outside" if rank in job.dumps else "unknown",
            tuple(waits[rank]),
            tuple(calls[rank]),
            node=hosts.get(rank),
        )
        for rank in dict.fromkeys([*job.dumps, *job.world, *missing])
    ]


def _groups(job: DumpSet) -> list[tuple[Group, _Seen]]:
    """The groups that dumps tell of; those of one name are several where their members differ."""
    members = defaultdict(set)
    for dump in job.dumps.values():
        for group in dump.groups:
            members[group.name].add(group.ranks)
    by_key: dict[object, dict[int, GroupSeen]] = defaultdict(dict)
    for rank, dump in job.dumps.items():
        for group in dump.groups:
            several = group.name != "0" and len(members[group.name] - {()}) > 1
            by_key[group.name, group.ranks if several else ()][rank] = group
    return [(_group(job, seen), seen) for seen in by_key.values()]


def _group(job: DumpSet, seen: _Seen) -> Group:
    name = next(iter(seen.values())).name
    described = next((group.description for group in seen.values() if group.description), "")
    is_default = name == "0" or described == "default_pg"
    words = f"group {name}" + (f" ({described})" if described not in ("", "undefined") else "")
    words = "the default group" if is_default else words
    if is_default or any(group.description == "default_pg" for group in seen.values()):
        return Group(name, job.world, job.world_is_known, words)
    ranks = max((group.ranks for group in seen.values()), key=len)
    return Group(name, ranks or tuple(sorted(seen)), bool(ranks), words)


def _waits(job: DumpSet, group: Group, seen: _Seen) -> Iterator[Wait]:
    missing: dict[int, frozenset[int]] = {}  # by number
    for rank, of_rank in seen.items():
        entry = next((entry for entry in of_rank.entries if entry.is_open), None)
        if entry is not None:
            if entry.seq not in missing:
                absent = (
                    other for other in group.members if _has_not_come(job.dumps.get(other), seen.get(other), entry)
                )
                missing[entry.seq] = frozenset(absent)
            yield Wait(rank, _call(group, [entry]), missing[entry.seq])


def _has_not_come(dump: FlightDumpFact | None, seen: GroupSeen | None, entry: FlightEntry) -> bool:
    if dump is None:
        return True
    if seen is None or (seen.highest_seq == 0 and seen.wrapped):
        return not any(other.wrapped for other in dump.groups)  # else its entries may have been overwritten
    return seen.highest_seq < entry.seq


def _transfers(job: DumpSet, groups: Sequence[tuple[Group, _Seen]]) -> Iterator[Wait]:
    group_of = {(rank, group.name): group for group, seen in groups for rank in seen}
    for rank, dump in job.dumps.items():
        for peer in dump.peers:
            name, _, number = peer.rpartition(":")
            group = group_of.get((rank, name))
            if group is not None and int(number) < len(group.members) and group.members[int(number)] != rank:
                yield Wait(rank, Call(group), frozenset({group.members[int(number)]}))


def _call(group: Group, entries: Sequence[FlightEntry]) -> Call:
    """What it has called at one number, where several entries were coalesced.

    Ranks must agree in the operation, and in how many numbers of which type where all give as many.
    """
    first = entries[0]
    alike: object = (first.op, sum(map(prod, first.sizes)), first.dtypes)
    if len(entries) > 1 or first.op not in _ALIKE:  # not all that were coalesced may be kept
        alike = ({entry.op for entry in entries} == {first.op}, first.op)
    return Call(group, first.seq, first.op, first.sizes, first.dtypes, alike)
