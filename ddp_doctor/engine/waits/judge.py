"""The judge that decides which rank blocks which, from standings of any evidence and without side effects.

A rank in a call of a group waits for the members that have not entered it. In the order of certainty:

1. A rank that is gone, stopped or in the kernel blocks all others, whatever they do.
2. If a rank that should wait moves, the job makes progress.
3. Calls differ at one number of a group: the minority is the cause.
4. Ranks wait for each other in a circle, in different groups: the cause is the ranks with another order of groups. No
   rank is named if half of the group or more came, because a rank that did not come may have skipped the call.
5. Other ranks wait for a rank that waits in nothing: it is working, or is in user code. If the waiting ranks are the
   minority, they called one collective more. If both sides are equal, only evidence about the absent rank itself
   counts.
6. Other ranks wait for a rank without any evidence: it is only a suspect.
7. Unnumbered calls differ: the minority is the cause.
8. All members are in the call: the cause is a link or a GPU, not a rank.

Evidence for these causes: dumps of the flight recorder (from_dumps.py) for 3 to 6 and 8; lines of the watchdog for 3
and 5 to 8, each group separately; samples of a running job for 1, 2, 5, 7 and 8 (both in standings.py of jobs). If two
sides are equal, no rank is named.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ddp_doctor.engine.waits.standings import UNABLE, Call, Group, Standing, Wait
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence

Kind = Literal[
    "unable",
    "gets-on",
    "different-calls",
    "stuck-gpu",
    "circle",
    "at-work",
    "outside",
    "one-more",
    "unreachable",
    "not-known",
    "all-in-one",
]


@dataclass(frozen=True)
class Ruling:
    """The reason why ranks wait. ``who``: the ranks it is about; only ``suspects`` are at fault."""

    kind: Kind
    sure: Confidence
    suspects: tuple[int, ...] = ()
    who: tuple[int, ...] = ()
    waits: tuple[Wait, ...] = ()  # of the ranks that wait for them
    sides: tuple[tuple[int, ...], ...] = ()  # ranks that did the same, if ranks differ
    calls: Mapping[int, Call] = field(default_factory=dict)  # that differ, by rank


def judge(standings: Sequence[Standing], *, all_are_known: bool = True) -> Ruling | None:
    """Return why ranks wait, or None if none waits. ``all_are_known``: there are no other ranks."""
    ranks = _Ranks(standings, all_are_known)
    unable = tuple(standing.rank for standing in standings if standing.state in UNABLE)
    if unable:
        return Ruling("unable", Confidence.PROVED, unable, unable, ranks.waits)
    working = any(standing.moves for standing in standings if standing.state == "outside")
    if any(standing.moves for standing in standings if standing.state == "waits") or (working and not ranks.waits):
        return Ruling("gets-on", Confidence.LIKELY)
    if not ranks.waits:
        return None
    groups = {wait.call.group for wait in ranks.waits if wait.call.seq is not None}
    ruling = different_calls(standings, groups)
    causes = (_stuck_gpu, _came_never, _circle, _outside, _unreachable, _different_unnumbered_calls)
    ruling = ruling or next((ruling for cause in causes if (ruling := cause(ranks))), None)
    waiting = tuple(sorted({wait.rank for wait in ranks.waits}))
    return ruling or Ruling("all-in-one", Confidence.POSSIBLE, (), waiting, ranks.waits)


def minority(sides: Collection[Sequence[int]]) -> tuple[int, ...]:
    """Return the ranks outside the largest side; empty if the two largest sides are equal."""
    sizes = sorted(map(len, sides), reverse=True)
    if len(sizes) > 1 and sizes[0] == sizes[1]:
        return ()
    largest = max(sides, key=len)
    return tuple(sorted(rank for ranks in sides for rank in ranks if rank not in largest))


class _Ranks:
    """The wait graph."""

    def __init__(self, standings: Sequence[Standing], all_are_known: bool) -> None:
        self.standings = {standing.rank: standing for standing in standings}
        self.all_are_known = all_are_known
        self.waits = tuple(wait for _, standing in sorted(self.standings.items()) for wait in standing.waits)
        self.awaited = frozenset(rank for wait in self.waits for rank in wait.missing)

    def awaited_in(self, state: str) -> tuple[int, ...]:
        """Return the ranks in this state that some rank waits for."""
        return tuple(sorted(rank for rank in self.awaited if self.standings[rank].state == state))

    def waits_for(self, ranks: Collection[int]) -> tuple[Wait, ...]:
        """Return the waits for any of these ranks."""
        return tuple(wait for wait in self.waits if not wait.missing.isdisjoint(ranks))

    @property
    def in_a_circle(self) -> dict[int, Wait]:
        """The ranks that wait for each other, or for such ranks, each with its first wait."""
        edges: dict[int, set[int]] = defaultdict(set)
        for wait in self.waits:
            edges[wait.rank] |= wait.missing
        inside = _before_a_circle(edges)
        return {wait.rank: wait for wait in reversed(self.waits) if wait.rank in inside and wait.missing & inside}

    @property
    def in_other_orders(self) -> dict[int, Wait]:
        """Each rank's first wait, if all have queued the same calls of several groups in different orders.

        A GPU runs queued work in order: two communicators in different orders block each other.
        """
        queues = {
            rank: sorted((wait for wait in standing.waits if wait.call.op), key=lambda wait: wait.place)
            for rank, standing in self.standings.items()
        }
        orders = {rank: [(wait.call.group, wait.call.seq) for wait in queue] for rank, queue in queues.items()}
        first = next(iter(orders.values()))
        all_have_the_same = all(set(order) == set(first) for order in orders.values())
        if self.awaited or not first or not all_have_the_same or all(order == first for order in orders.values()):
            return {}
        return {rank: queue[0] for rank, queue in queues.items()}


def _before_a_circle(edges: Mapping[int, set[int]]) -> set[int]:
    """Return the ranks in a circle or leading into one: removes ranks that wait for no remaining rank, repeatedly."""
    waited_by = grouped((other, rank) for rank, others in edges.items() for other in others)
    count = {rank: sum(other in edges for other in others) for rank, others in edges.items()}
    free = [rank for rank, left in count.items() if left == 0]
    while free:
        for rank in waited_by.get(free.pop(), ()):
            count[rank] -= 1
            if count[rank] == 0:
                free.append(rank)
    return {rank for rank, left in count.items() if left > 0}


def different_calls(standings: Iterable[Standing], groups: Collection[Group] | None = None) -> Ruling | None:
    """Return a ruling on different calls at one number of a group (or of these groups), largest group first."""
    calls: dict[Group, dict[int, dict[int, Call]]] = {}
    for standing in standings:
        for call in standing.calls:
            if call.seq is not None and call.alike is not None and (groups is None or call.group in groups):
                calls.setdefault(call.group, {}).setdefault(call.seq, {})[standing.rank] = call
    for group in sorted(calls, key=lambda group: (-len(group.members), group.name)):
        for _, of_ranks in sorted(calls[group].items()):
            if (ruling := _compared(of_ranks, Confidence.PROVED)) is not None:
                return ruling
    return None


def _compared(calls: Mapping[int, Call], sure: Confidence) -> Ruling | None:
    sides = grouped((call.alike, rank) for rank, call in calls.items())
    if len(sides) < 2:
        return None
    few = minority(sides.values())
    return Ruling(
        "different-calls", sure, few, few or tuple(calls), sides=tuple(map(tuple, sides.values())), calls=calls
    )


def _stuck_gpu(ranks: _Ranks) -> Ruling | None:
    """Return a ruling on a minority of ranks that have not completed a collective that other members completed."""
    behind = {rank: standing.behind for rank, standing in ranks.standings.items() if standing.behind}
    if not behind or 2 * len(behind) >= sum(standing.state != "unknown" for standing in ranks.standings.values()):
        return None
    who = tuple(sorted(behind))
    waits = tuple(wait for wait in ranks.waits if wait.rank in behind and wait.call in behind[wait.rank])
    return Ruling("stuck-gpu", Confidence.LIKELY, who, who, waits)


def _came_never(ranks: _Ranks) -> Ruling | None:
    """Return a ruling on an idle rank: it explains a circle of the ranks that wait for it and for each other."""
    ruling = _outside(ranks)
    return ruling if ruling is not None and ruling.suspects else None


def _circle(ranks: _Ranks) -> Ruling | None:
    """Return a ruling on ranks that wait for each other, or that all entered their groups in different orders."""
    first = ranks.in_a_circle or ranks.in_other_orders
    if not first:
        return None
    in_group = grouped((wait.call.group, rank) for rank, wait in first.items())
    few = minority(in_group.values())
    half_came = any(0 < 2 * len(first[rank].missing) <= len(first[rank].call.group.members) for rank in few)
    if half_came or 2 * max(map(len, in_group.values())) <= len(first):
        few = ()
    sides = tuple(map(tuple, in_group.values()))
    has_transfers = any(wait.call.seq is None for wait in first.values())
    is_known = not ranks.awaited_in("unknown")
    if not is_known:
        few = ()
    sure = Confidence.PROVED if is_known and not has_transfers else Confidence.POSSIBLE
    return Ruling("circle", sure, few, few or tuple(first), tuple(first.values()), sides)


def _outside(ranks: _Ranks) -> Ruling | None:
    """Return a ruling on ranks that block others but wait in nothing; or on the rank that made a collective more."""
    absent = ranks.awaited_in("outside")
    if not absent:
        return None
    standings = ranks.standings
    if working := tuple(rank for rank in absent if standings[rank].moves):
        return Ruling("at-work", Confidence.PROVED, working, working, ranks.waits_for(working))
    still = tuple(rank for rank in absent if standings[rank].moves is False)
    if not still:
        return Ruling("not-known", Confidence.POSSIBLE, who=absent, waits=ranks.waits_for(absent))
    waits = ranks.waits_for(still)
    callers = tuple(sorted({wait.rank for wait in waits}))
    are_seen = all(standings[rank].is_seen for rank in still)
    if len(callers) < len(still) and (are_seen or len(callers) == 1):
        return Ruling("one-more", Confidence.LIKELY, callers, callers, waits, (callers, still))
    call = min(waits, key=lambda wait: len(wait.missing)).call
    named, sure = still, Confidence.LIKELY
    if len(still) < sum(standings[rank].moves is False for rank in callers):  # a rank that waits for a GPU may move
        sure = Confidence.PROVED
    elif not are_seen:
        # One rank against another: the absent one is named if it called this operation of the group before.
        called_before = any((before.group, before.op) == (call.group, call.op) for before in standings[still[0]].calls)
        if not (len(callers) == len(still) == 1 and called_before):
            named, sure = (), Confidence.POSSIBLE
    return Ruling("outside", sure, named, still, waits)


def _unreachable(ranks: _Ranks) -> Ruling | None:
    """Return a ruling on ranks without evidence: names a single one, or all if they are exactly the ranks of a host.

    If several are absent, some may only have lost their evidence.
    """
    absent = ranks.awaited_in("unknown")
    if not absent:
        return None
    waits = ranks.waits_for(absent)
    hosts = {ranks.standings[rank].node for rank in absent}
    others = {standing.node for standing in ranks.standings.values() if standing.state != "unknown"}
    on_one = len(hosts) == 1 and hosts.isdisjoint({None, *others})
    are_few = len(absent) < len({wait.rank for wait in waits})
    if are_few and ranks.all_are_known and (len(absent) == 1 or on_one):
        return Ruling("unreachable", Confidence.LIKELY, absent, absent, waits)
    return Ruling("unreachable", Confidence.POSSIBLE, (), absent, waits)


def _different_unnumbered_calls(ranks: _Ranks) -> Ruling | None:
    """Return a ruling on unnumbered calls; it names no rank if one may have left, or if calls are not comparable."""
    unnumbered = {wait.rank: wait.call for wait in ranks.waits if wait.call.seq is None and wait.call.op}
    calls = {rank: call for rank, call in unnumbered.items() if call.alike is not None}
    ruling = _compared(calls, Confidence.LIKELY)
    if ruling is None or (len(calls) == len(unnumbered) and not any(call.may_be_left for call in calls.values())):
        return ruling
    return replace(ruling, suspects=(), who=tuple(calls))
