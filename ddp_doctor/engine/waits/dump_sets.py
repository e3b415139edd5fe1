"""Which dumps of the flight recorder are of one job: a folder may hold those of earlier jobs, or of several at once."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ddp_doctor.facts.job_log import FlightDumpFact

#: Two collectives that a dump has seen end were entered by all ranks; one may be a broadcast, whose root leaves early.
_SURELY_MET = 2
#: No rank waits longer than this for another's first collective (torch's time-outs are 10 and 30 minutes).
_LONGEST_START_S = 3600.0


@dataclass(frozen=True)
class DumpSet:
    """The dumps of one job, each rank's once."""

    dumps: dict[int, FlightDumpFact]
    unread: dict[int, FlightDumpFact]  # empty, cut off or damaged
    earlier: tuple[FlightDumpFact, ...]  # of earlier jobs, set aside
    world: tuple[int, ...]
    world_is_known: bool  # else it is as large as the highest rank says

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks without a dump that can be read."""
        return tuple(rank for rank in self.world if rank not in self.dumps)


def sets_of(facts: Sequence[FlightDumpFact], world_size: int | None) -> tuple[DumpSet, ...]:
    """The jobs of these dumps without those that others have followed. ``world_size``: what the job's output says."""
    facts = [fact for fact in facts if fact.rank is not None]
    ranks_by_folder: dict[str, list[FlightDumpFact]] = {}
    for fact in facts:
        ranks_by_folder.setdefault(str(PurePath(fact.file).parent), []).append(fact)
    folders = Counter(rank for of in ranks_by_folder.values() for rank in {fact.rank for fact in of})
    one_job = max(folders.values(), default=0) < 2  # a folder for each node
    sets = []
    for pool in [facts] if one_job else ranks_by_folder.values():
        readable = _each_process_once(fact for fact in pool if fact.problem is None)
        jobs = _split([fact for fact in readable if fact.newest_at_s is not None])
        last = [job for job in jobs if not any(_is_followed(job, other) for other in jobs)]
        silent = [fact for fact in readable if fact.newest_at_s is None]  # it made no collective, so it fits any job
        if len(last) == 1 or not last:
            last = [[*(last[0] if last else []), *silent]]
        sets += [_set(job, pool, world_size) for job in last if job]
    return tuple(sets)


def _set(job: Sequence[FlightDumpFact], pool: Sequence[FlightDumpFact], said: int | None) -> DumpSet:
    newest = max(job, key=lambda fact: fact.newest_at_s or 0.0)
    current = [fact for fact in job if not _is_stale(fact, newest)]
    sizes = Counter(fact.world_size for fact in current if fact.world_size)
    size = sizes.most_common(1)[0][0] if sizes else said
    dumps = {fact.rank or 0: fact for fact in current if size is None or (fact.rank or 0) < size}
    unread = {fact.rank or 0: fact for fact in pool if fact.problem is not None and fact.rank not in dumps}
    unread = {rank: fact for rank, fact in unread.items() if size is None or rank < size}
    least = max([*dumps, *unread], default=-1) + 1
    # gloo tells the members of the group that was made last: mostly the default one, and no other is larger.
    told = max((len(group.ranks) for fact in current for group in fact.groups if group.name == "0"), default=0)
    if size is None and told >= least:
        size = told
    world = range(least if size is None else size)
    files = {fact.file for fact in dumps.values()}
    ranks = set(dumps)
    earlier = tuple(fact for fact in pool if fact.problem is None and fact.file not in files and fact.rank not in ranks)
    return DumpSet(dumps, unread, earlier, tuple(world), size is not None)


def _each_process_once(facts: Iterable[FlightDumpFact]) -> list[FlightDumpFact]:
    """One dump of each process: the newest, and of two forms of one the one with frames."""
    kept: dict[int | None, list[FlightDumpFact]] = {}
    for fact in sorted(facts, key=lambda fact: (fact.newest_at_s or 0.0, len(fact.frames)), reverse=True):
        of_rank = kept.setdefault(fact.rank, [])
        if not any(fact.oldest_at_s == of.oldest_at_s or fact.newest_at_s == of.newest_at_s for of in of_rank):
            of_rank.append(fact)
    return [fact for of_rank in kept.values() for fact in of_rank]


def _split(facts: Sequence[FlightDumpFact]) -> list[list[FlightDumpFact]]:
    """Jobs apart: where a rank is there twice, at the longest pause between the first collectives of dumps."""
    facts = sorted(facts, key=lambda fact: fact.oldest_at_s or 0.0)
    if len({fact.rank for fact in facts}) == len(facts):
        return [facts] if facts else []
    starts = [fact.oldest_at_s or 0.0 for fact in facts]
    place = max(range(1, len(facts)), key=lambda place: starts[place] - starts[place - 1])
    return [*_split(facts[:place]), *_split(facts[place:])]


def _is_followed(job: Sequence[FlightDumpFact], by: Sequence[FlightDumpFact]) -> bool:
    """Whether another job began after the last collective of this one."""
    ended = max(fact.newest_at_s or 0.0 for fact in job)
    return job is not by and ended < min(fact.oldest_at_s or 0.0 for fact in by)


def _is_stale(fact: FlightDumpFact, newest: FlightDumpFact) -> bool:
    """Whether a dump is of an earlier job than the newest one: it ended before that began.

    A rank that has seen collectives end has met all others in them, so theirs cannot all be later.
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
