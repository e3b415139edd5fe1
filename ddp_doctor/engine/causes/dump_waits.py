"""The wait graph of one job: which rank waits in which collective, and for whom, by its dumps."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ddp_doctor.engine.causes.dump_sets import DumpSet
from ddp_doctor.facts.job_log import GroupSeen
from ddp_doctor.model.trial import FlightEntry
from ddp_doctor.views.job_waits import collective_name


class Group(NamedTuple):
    """A process group over all dumps."""

    name: str
    members: tuple[int, ...]
    members_are_known: bool
    seen: dict[int, GroupSeen]  # by rank

    @property
    def words(self) -> str:
        """How a person names it."""
        described = next((seen.description for seen in self.seen.values() if seen.description), "")
        if self.name == "0" or described == "default_pg":
            return "the default group"
        return f"group {self.name}" + (f" ({described})" if described not in ("", "undefined") else "")


class Wait(NamedTuple):
    """A rank in a collective, or in a transfer, and who has not come to it."""

    rank: int
    group: Group
    entry: FlightEntry | None  # None: a send or a receive
    missing: frozenset[int]

    @property
    def call(self) -> str:
        """all-reduce 17 of the default group."""
        if self.entry is None:
            return f"a transfer with rank {min(self.missing)}"
        return f"{collective_name(self.entry.op)} {self.entry.seq} of {self.group.words}"


@dataclass(frozen=True)
class Waits:
    """The wait graph of one job."""

    job: DumpSet
    hosts: Mapping[int, str]  # of the ranks, as far as the job's output tells

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups that dumps tell of; those of one name are several where their members differ."""
        by_key: dict[object, dict[int, GroupSeen]] = defaultdict(dict)
        memberships = defaultdict(set)
        for dump in self.job.dumps.values():
            for group in dump.groups:
                memberships[group.name].add(group.ranks)
        for rank, dump in self.job.dumps.items():
            for group in dump.groups:
                several = group.name != "0" and len(memberships[group.name] - {()}) > 1
                by_key[group.name, group.ranks if several else ()][rank] = group
        return tuple(self._group(seen) for seen in by_key.values())

    def _group(self, seen: dict[int, GroupSeen]) -> Group:
        first = next(iter(seen.values()))
        if first.name == "0" or any(group.description == "default_pg" for group in seen.values()):
            return Group(first.name, self.job.world, self.job.world_is_known, seen)
        ranks = max((group.ranks for group in seen.values()), key=len)
        return Group(first.name, ranks or tuple(sorted(seen)), bool(ranks), seen)

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """One for each rank and group, in the order of the ranks."""
        found = []
        for group in self.groups:
            missing: dict[int, frozenset[int]] = {}  # by number
            for rank, seen in group.seen.items():
                entry = next((entry for entry in seen.entries if entry.is_open), None)
                if entry is not None:
                    if entry.seq not in missing:
                        absent = (other for other in group.members if self._has_not_come(other, group, entry))
                        missing[entry.seq] = frozenset(absent)
                    found.append(Wait(rank, group, entry, missing[entry.seq]))
        return tuple(sorted([*found, *self._transfers()], key=lambda wait: wait.rank))

    def _has_not_come(self, rank: int, group: Group, entry: FlightEntry) -> bool:
        dump = self.job.dumps.get(rank)
        if dump is None:
            return True
        seen = group.seen.get(rank)
        if seen is None or (seen.highest_seq == 0 and seen.wrapped):
            return not any(other.wrapped for other in dump.groups)  # else its entries may have been overwritten
        return seen.highest_seq < entry.seq

    def _transfers(self) -> Iterator[Wait]:
        groups = {(rank, group.name): group for group in self.groups for rank in group.seen}
        for rank, dump in self.job.dumps.items():
            for peer in dump.peers:
                name, _, number = peer.rpartition(":")
                group = groups.get((rank, name))
                if group is not None and int(number) < len(group.members):
                    other = group.members[int(number)]
                    yield Wait(rank, group, None, frozenset({other} - {rank}))

    @cached_property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that wait in something."""
        return tuple(sorted({wait.rank for wait in self.waits}))

    @cached_property
    def awaited(self) -> frozenset[int]:
        """The ranks that some rank waits for."""
        return frozenset(rank for wait in self.waits for rank in wait.missing)

    def waits_for(self, ranks: Sequence[int]) -> list[Wait]:
        """The waits of which one of these ranks is missing."""
        return [wait for wait in self.waits if wait.missing & set(ranks)]

    @cached_property
    def in_a_circle(self) -> dict[int, Wait]:
        """Ranks that wait for each other, or for ranks that do, and where each waits."""
        edges: dict[int, set[int]] = defaultdict(set)
        for wait in self.waits:
            edges[wait.rank] |= wait.missing
        inside = _before_a_circle(edges)
        return {wait.rank: wait for wait in reversed(self.waits) if wait.rank in inside and wait.missing & inside}

    @cached_property
    def in_other_orders(self) -> dict[int, Wait]:
        """Each rank's first open collective, where all have queued the same ones of several groups in other orders.

        A GPU carries out what is queued in order: two communicators in different orders block each other.
        """
        if self.awaited or len(self.waiting) < len(self.job.world):
            return {}
        by_call = {(wait.rank, f"{wait.group.name}:{wait.entry.seq}"): wait for wait in self.waits if wait.entry}
        orders = {
            rank: tuple(call for call in dump.open_order if (rank, call) in by_call)
            for rank, dump in self.job.dumps.items()
        }
        same_calls = len({tuple(sorted(order)) for order in orders.values()}) == 1
        if not same_calls or len(set(orders.values())) == 1:
            return {}
        return {rank: by_call[rank, order[0]] for rank, order in orders.items()}


def _before_a_circle(edges: Mapping[int, set[int]]) -> set[int]:
    """The ranks in a circle, or that lead into one: those left when whoever waits for none of them is taken out."""
    waited_by: dict[int, list[int]] = defaultdict(list)
    for rank, others in edges.items():
        for other in others:
            waited_by[other].append(rank)
    count = {rank: sum(other in edges for other in others) for rank, others in edges.items()}
    free = [rank for rank, left in count.items() if left == 0]
    while free:
        gone = free.pop()
        for rank in waited_by[gone]:
            count[rank] -= 1
            if count[rank] == 0:
                free.append(rank)
    return {rank for rank, left in count.items() if left > 0}
