"""The positions of ranks, from dumps of torch's flight recorder: a rank waits in the first open collective of a group.

A directory may hold the dumps of earlier jobs, or of several jobs at once, so the dumps of each job are grouped first.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import PurePath

from ddp_doctor.engine.waits.standings import Call, Group, Standing, Wait
from ddp_doctor.facts.given import FlightDumpFact, GroupSeen
from ddp_doctor.model.base import grouped
from ddp_doctor.model.trial import FlightEntry

#: All ranks of a group contribute the same number of elements to these; other collectives allow different shapes.
_ALIKE = ("all_reduce", "allreduce_coalesced", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")
#: Collectives that complete on a rank only if all members have taken part; a root may leave the others early.
_ALL_TAKE_PART = ("all_reduce", "allreduce_coalesced", "all_gather", "_all_gather_base", "all_to_all", "barrier")
#: All ranks entered a collective if a dump shows two that ended; a single one may be a broadcast, whose root leaves
#: early.
_SURELY_MET = 2
#: No rank waits longer than this for another's first collective (torch's timeouts are 10 and 30 minutes).
_LONGEST_START_S = 3600.0

#: A process group over all dumps: each rank's view of it.
_Seen = Mapping[int, GroupSeen]


@dataclass(frozen=True)
class DumpSet:
    """The dumps of one job, one per rank."""

    dumps: dict[int, FlightDumpFact]
    unread: dict[int, FlightDumpFact]  # empty, cut off or damaged
    earlier: tuple[FlightDumpFact, ...]  # of earlier jobs, ignored
    world: tuple[int, ...]
    world_is_known: bool  # otherwise the highest rank determines its size

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks without a readable dump."""
        return tuple(rank for rank in self.world if rank not in self.dumps)


def sets_of(facts: Sequence[FlightDumpFact], world_size: int | None) -> tuple[DumpSet, ...]:
    """Return the jobs of these dumps that no later job followed. ``world_size`` comes from the job's output."""
    facts = [fact for fact in facts if fact.rank is not None]
    by_folder = grouped((PurePath(fact.file).parent, fact) for fact in facts)
    folders = Counter(rank for of_folder in by_folder.values() for rank in {fact.rank for fact in of_folder})
    one_job = max(folders.values(), default=0) < 2  # one directory per node
    sets = []
    for pool in [facts] if one_job else by_folder.values():
        readable = _each_process_once(fact for fact in pool if fact.problem is None)
        jobs = _split([fact for fact in readable if fact.newest_at_s is not None])
        last = [job for job in jobs if not any(_is_followed(job, other) for other in jobs)]
        silent = [fact for fact in readable if fact.newest_at_s is None]  # it made no collective, so it fits any job
        if len(last) == 1 or not last:
            last = [[*(last[0] if last else []), *silent]]
        sets += [_set(job, pool, world_size) for job in last if job]
    return tuple(sets)


def _set(job: Sequence[FlightDumpFact], pool: Sequence[FlightDumpFact], world_size: int | None) -> DumpSet:
    newest = max(job, key=lambda fact: fact.newest_at_s or 0.0)
    current = [fact for fact in job if not _is_stale(fact, newest)]
    sizes = Counter(fact.world_size for fact in current if fact.world_size)
    size = sizes.most_common(1)[0][0] if sizes else world_size
    dumps = {fact.rank or 0: fact for fact in current if size is None or (fact.rank or 0) < size}
    unread = {fact.rank or 0: fact for fact in pool if fact.problem is not None and fact.rank not in dumps}
    unread = {rank: fact for rank, fact in unread.items() if size is None or rank < size}
    least = max([*dumps, *unread], default=-1) + 1
    # gloo reports the members of the last group that was created: usually the default group, and no other is larger.
    members = max((len(group.ranks) for fact in current for group in fact.groups if group.name == "0"), default=0)
    if size is None and members >= least:
        size = members
    world = range(least if size is None else size)
    files = {fact.file for fact in dumps.values()}
    ranks = set(dumps)
    earlier = tuple(fact for fact in pool if fact.problem is None and fact.file not in files and fact.rank not in ranks)
    return DumpSet(dumps, unread, earlier, tuple(world), size is not None)


def _each_process_once(facts: Iterable[FlightDumpFact]) -> list[FlightDumpFact]:
    """Return the newest dump of each process; a dump with frames is preferred to the same one without."""
    kept: dict[int | None, list[FlightDumpFact]] = {}
    for fact in sorted(facts, key=lambda fact: (fact.newest_at_s or 0.0, len(fact.frames)), reverse=True):
        of_rank = kept.setdefault(fact.rank, [])
        if not any(fact.oldest_at_s == of.oldest_at_s or fact.newest_at_s == of.newest_at_s for of in of_rank):
            of_rank.append(fact)
    return [fact for of_rank in kept.values() for fact in of_rank]


def _split(facts: Sequence[FlightDumpFact]) -> list[list[FlightDumpFact]]:
    """Separate jobs: if a rank occurs twice, split at the longest pause between the first collectives of dumps."""
    facts = sorted(facts, key=lambda fact: fact.oldest_at_s or 0.0)
    if len({fact.rank for fact in facts}) == len(facts):
        return [facts] if facts else []
    starts = [fact.oldest_at_s or 0.0 for fact in facts]
    place = max(range(1, len(facts)), key=lambda place: starts[place] - starts[place - 1])
    return [*_split(facts[:place]), *_split(facts[place:])]


def _is_followed(job: Sequence[FlightDumpFact], by: Sequence[FlightDumpFact]) -> bool:
    """Return True if another job began after the last collective of this one."""
    ended = max(fact.newest_at_s or 0.0 for fact in job)
    return job is not by and ended < min(fact.oldest_at_s or 0.0 for fact in by)


def _is_stale(fact: FlightDumpFact, newest: FlightDumpFact) -> bool:
    """Return True if a dump is of an earlier job than the newest one: it ended before that job began.

    A rank whose collectives ended has met all other ranks in them, so the collectives of these cannot all be later.
    """
    if fact.world_size and newest.world_size and fact.world_size != newest.world_size:
        return True
    if fact.newest_at_s is None or newest.oldest_at_s is None or fact.newest_at_s >= newest.oldest_at_s:
        return False
    if newest.oldest_at_s - fact.newest_at_s > _LONGEST_START_S:
        return True
    if any(group.wrapped for group in newest.groups):  # its first collectives are no longer known
        highest = {group.name: group.highest_seq for group in newest.groups}
        return any(group.highest_seq > highest.get(group.name, group.highest_seq) + 1 for group in fact.groups)
    return sum(not entry.is_open for group in fact.groups for entry in group.entries) >= _SURELY_MET


# --- where their ranks stand -------------------------------------------------------------------------


def standings_of(job: DumpSet, hosts: Mapping[int, str]) -> list[Standing]:
    """Return one standing per rank, ranks with a dump first; nothing is known of the other ranks."""
    groups = groups_of(job)
    found = [wait for group, seen in groups for wait in _waits(job, group, seen)]
    found += _transfers(job, groups)
    waits = grouped((wait.rank, wait) for wait in found)
    missing = [rank for wait in found for rank in sorted(wait.missing)]
    behind = grouped(at for group, seen in groups for at in _behind(group, seen))
    in_use = {wait.call.group for wait in found}
    calls: dict[int, list[Call]] = defaultdict(list)
    for group, seen in groups:
        if group in in_use:
            for rank, of_rank in seen.items():
                by_number = grouped((entry.seq, entry) for entry in of_rank.entries)
                calls[rank].extend(_call(group, entries) for entries in by_number.values())
    return [
        Standing(
            rank,
            "waits" if rank in waits else "outside" if rank in job.dumps else "unknown",
            tuple(waits.get(rank, ())),
            tuple(calls[rank]),
            node=hosts.get(rank),
            behind=tuple(behind.get(rank, ())),
        )
        for rank in dict.fromkeys([*job.dumps, *job.world, *missing])
    ]


def groups_of(job: DumpSet) -> list[tuple[Group, _Seen]]:
    """Return the groups in the dumps; groups of one name are separate if their members differ."""
    named = grouped((group.name, group.ranks) for dump in job.dumps.values() for group in dump.groups)
    members = {name: {*ranks} - {()} for name, ranks in named.items()}
    by_key: dict[object, dict[int, GroupSeen]] = defaultdict(dict)
    for rank, dump in job.dumps.items():
        for group in dump.groups:
            several = group.name != "0" and len(members[group.name]) > 1
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
                missing[entry.seq] = frozenset(
                    other for other in group.members if _has_not_come(job.dumps.get(other), seen.get(other), entry)
                )
            queue, queued = job.dumps[rank].open_order, f"{group.name}:{entry.seq}"
            place = queue.index(queued) if queued in queue else len(queue)
            yield Wait(rank, _call(group, [entry]), missing[entry.seq], place)


def _behind(group: Group, seen: _Seen) -> Iterator[tuple[int, Call]]:
    """Yield ranks whose first open collective is completed on another rank: their GPUs do not finish it."""
    for rank, of_rank in seen.items():
        entry = next((entry for entry in of_rank.entries if entry.is_open), None)
        if entry is None or not entry.op.startswith(_ALL_TAKE_PART):
            continue
        if any(other.completed_seq >= entry.seq for member, other in seen.items() if member != rank):
            yield rank, _call(group, [entry])


def _has_not_come(dump: FlightDumpFact | None, seen: GroupSeen | None, entry: FlightEntry) -> bool:
    if dump is None:
        return True
    if seen is None or (seen.highest_seq == 0 and seen.wrapped):
        return not any(other.wrapped for other in dump.groups)  # its entries may have been overwritten
    return seen.highest_seq < entry.seq


def _transfers(job: DumpSet, groups: Sequence[tuple[Group, _Seen]]) -> Iterator[Wait]:
    group_of = {(rank, group.name): group for group, seen in groups for rank in seen}
    for rank, dump in job.dumps.items():
        for peer in dump.peers:
            name, _, number = peer.rpartition(":")
            group = group_of.get((rank, name))
            if group is not None and int(number) < len(group.members) and group.members[int(number)] != rank:
                other = group.members[int(number)]
                is_matched = rank in group.members and f"{name}:{group.members.index(rank)}" in (
                    job.dumps[other].peers if other in job.dumps else ()
                )
                yield Wait(rank, Call(group), frozenset() if is_matched else frozenset({other}))


def _call(group: Group, entries: Sequence[FlightEntry]) -> Call:
    """Return the call of one number, which may have several coalesced entries.

    Ranks must agree on the operation, and for collectives of equal contributions on the number and type of elements.
    """
    first = entries[0]
    alike: object = (first.op, sum(map(prod, first.sizes)), first.dtypes)
    if len(entries) > 1 or first.op not in _ALIKE:  # coalesced entries may be incomplete
        alike = ({entry.op for entry in entries} == {first.op}, first.op)
    return Call(group, first.seq, first.op, first.sizes, first.dtypes, alike)
