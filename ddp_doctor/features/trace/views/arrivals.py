"""Who came last to each collective, and what the others lost by it; no clock is compared with another one.

Nobody leaves a collective before all have come, so its calls end together on all ranks, and who has the shortest one
came last. docs/explanation/traces.md says more.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median, median_low
from typing import NamedTuple

from ddp_doctor.features.trace.facts import Interval, TraceCall, TraceFact
from ddp_doctor.features.trace.numbers import ENDS_APART
from ddp_doctor.model.base import grouped
from ddp_doctor.model.intervals import Times

#: Between two ranks: the calls of others say nothing of it.
_OF_PAIRS = frozenset(("send", "recv", "send_recv"))
#: Ranks of which each gives the same size.
_OF_ONE_SIZE = frozenset(("all_reduce", "broadcast"))
#: Who has given his part may leave.
_ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter", "collective"))
#: So many ranks are looked at closely: those that came latest.
_MOST_CANDIDATES = 8

#: A collective of a rank: its group, the number of its step, its kind, and its number.
_Key = tuple[str, int, str, int]


class Meeting(NamedTuple):
    """One collective: when each rank came and left by its own clock, by the rank's place in the window."""

    step: int  # its number
    kind: str
    spans: Mapping[int, Interval]
    size_bytes: int | None = None  # what each rank gives, where all give the same

    def waited(self, place: int, late: int | None = None) -> float:
        """For how long this rank waited for that one, or for the last one to come."""
        others = self.spans.values() if late is None else (self.spans[late],)
        begin, end = self.spans[place]
        return max(end - begin - min(end - begin for begin, end in others), 0.0)


class Met(NamedTuple):
    """The collectives in which ranks met."""

    meetings: tuple[Meeting, ...]
    problem: str = ""  # why some, or all, are not matched


class Late(NamedTuple):
    """What the others lose by one rank."""

    place: int  # in the window
    lost_us: Mapping[int, float]  # by the number of the step
    share: float  # … of all steps together

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps in which it was late."""
        most = max(self.lost_us.values())
        return tuple(step for step, lost in self.lost_us.items() if lost >= most / 4)


def meet(ranks: Sequence[TraceFact]) -> Met:
    """Match the collectives of these ranks, by their number in the group, or by their order in the step."""
    of_ranks = [_calls(fact) for fact in ranks]
    steps = [{step.number for step in fact.steps} for fact in ranks]
    members = grouped((group, at) for at, calls in enumerate(of_ranks) for group in {key[0] for key in calls})
    met, unlike, steps_met = list[tuple[str, Meeting]](), set[tuple[str, int]](), set[int]()
    for key in dict.fromkeys(key for calls in of_ranks for key in calls):
        group, step, kind, _ = key
        places = members[group]
        if len(places) < 2 or not all(step in steps[place] for place in places):
            continue
        steps_met.add(step)
        calls = {place: call for place in places if (call := of_ranks[place].get(key)) is not None}
        sizes = {call.size_bytes for call in calls.values()}
        if len(calls) < len(places) or (kind in _OF_ONE_SIZE and len(sizes) > 1):
            unlike.add((group, step))
            continue
        spans = {at: (_came(ranks[at], call), call.end_us) for at, call in calls.items()}
        met.append((group, Meeting(step, kind, spans, sizes.pop() if len(sizes) == 1 else None)))
    matched = tuple(meeting for group, meeting in met if (group, meeting.step) not in unlike)
    if _ends_apart(ranks, matched):
        return Met((), "collectives do not end together on all ranks: these are not the same steps of one job")
    odd = sorted({step for _, step in unlike})
    which = "any step" if len(odd) == len(steps_met) else f"step {', '.join(map(str, odd[:4]))}"
    return Met(matched, f"the ranks have not the same collectives in {which}" if odd else "")


def _calls(fact: TraceFact) -> dict[_Key, TraceCall]:
    """The collectives of a rank, by what tells which is which.

    gloo does not tell the group: of a rank in several ones, those that DDP makes in forward and backward are taken.
    """
    made: dict[_Key, TraceCall] = {}
    counts = defaultdict[tuple[str, int, str], int](int)
    for call in fact.calls:
        of_one_group = call.group or len(fact.groups) < 2 or call.during
        if call.step is None or call.kind in _OF_PAIRS or not of_one_group:
            continue
        which = (call.group, fact.steps[call.step].number, call.kind)
        made[(*which, counts[which] if call.seq is None else call.seq)] = call
        counts[which] += 1
    return made


def _came(fact: TraceFact, call: TraceCall) -> float:
    """When a rank was ready; that a thread of gloo took its call up late is no fault of the rank."""
    return call.begin_us if fact.device == "gpu" or call.called_us is None else call.called_us


def _ends_apart(ranks: Sequence[TraceFact], met: Sequence[Meeting]) -> bool:
    """Whether calls that should end together do not, whatever the clocks of the ranks are."""
    step = median([step.length_us for fact in ranks for step in fact.steps] or [0.0])
    for place in range(1, len(ranks)):
        both = [meeting.spans for meeting in met if meeting.kind not in _ROOTED and {0, place} <= set(meeting.spans)]
        apart = [spans[place][1] - spans[0][1] for spans in both]
        offset = median(apart or [0.0])
        if median([abs(each - offset) for each in apart] or [0.0]) > ENDS_APART * step:
            return True
    return False


def late(ranks: Sequence[TraceFact], met: Sequence[Meeting]) -> tuple[Late, ...]:
    """What the others lose by each rank, the one by which they lose most first; of many, those that come latest."""
    lengths = grouped((step.number, step.length_us) for fact in ranks for step in fact.steps)
    total = sum(mean(lengths[step]) for step in {meeting.step for meeting in met})
    exposed = [Times.union(*(step.exposed for step in fact.steps)) for fact in ranks]
    found = []
    for place in _latest(ranks, met):
        lost = _lost(place, exposed, met)
        found.append(Late(place, lost, sum(lost.values()) / total))
    return tuple(sorted(found, key=lambda one: (-one.share, one.place)))


def _latest(ranks: Sequence[TraceFact], met: Sequence[Meeting]) -> list[int]:
    """Those that came last most of the time, by how long after the one in the middle."""
    behind = dict.fromkeys(range(len(ranks)), 0.0)
    for meeting in met:
        lasts = {place: end - begin for place, (begin, end) in meeting.spans.items()}
        middle = median(lasts.values())
        for place, last in lasts.items():
            behind[place] += max(middle - last, 0.0)
    return sorted(behind, key=lambda place: -behind[place])[:_MOST_CANDIDATES] if met else []


def _lost(late: int, exposed: Sequence[Times], met: Sequence[Meeting]) -> dict[int, float]:
    """What the others wait for a rank with nothing else to do, in each step: the lower median of them.

    So who merely is the last but one is not late, and of three ranks two cannot be.
    """
    waits = defaultdict[tuple[int, int], list[Interval]](list)
    for meeting in met:
        for place in meeting.spans if late in meeting.spans else ():
            begin, waited = meeting.spans[place][0], meeting.waited(place, late)
            if waited > 0:
                waits[meeting.step, place].append((begin, begin + waited))
    others = [place for place in range(len(exposed)) if place != late]
    return {
        step: median_low([_covered(waits[step, place], exposed[place]) for place in others])
        for step in sorted({meeting.step for meeting in met})
    }


def _covered(waits: Sequence[Interval], exposed: Times) -> float:
    if not waits:
        return 0.0
    within = exposed.within(min(begin for begin, _ in waits), max(end for _, end in waits))
    return (Times.union(waits) & within).total
