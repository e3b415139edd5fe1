"""The windows of a job, the ranks in each window, and the last rank of each collective.

Clocks of different ranks are not compared. No rank leaves a collective before all ranks have arrived, so its calls end
together on all ranks, and the rank with the shortest call came last. docs/explanation/traces.md explains this.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, median, median_low
from typing import NamedTuple

from ddp_doctor.features.trace.facts import Interval, TraceCall, TraceFact
from ddp_doctor.features.trace.numbers import ENDS_APART
from ddp_doctor.model.base import grouped
from ddp_doctor.model.intervals import Times
from ddp_doctor.model.recording import Recording, once_a_recording

#: Transfers between two ranks; the calls of other ranks do not match them.
_OF_PAIRS = frozenset(("send", "recv", "send_recv"))
#: Collectives to which every rank gives the same size.
_OF_ONE_SIZE = frozenset(("all_reduce", "broadcast"))
#: Collectives that a rank may leave before the others, once it has sent its part.
_ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter", "collective"))
#: Maximum number of late ranks to examine, the latest first.
_MOST_CANDIDATES = 8

#: The key of a rank's collective: its group, the number of its step, its kind, and its number.
_Key = tuple[str, int, str, int]


class Meeting(NamedTuple):
    """A collective: each rank's arrival and departure by its own clock, by the rank's place in the window."""

    step: int  # the number of its step
    kind: str
    spans: Mapping[int, Interval]
    size_bytes: int | None = None  # each rank's input, if equal on all ranks

    def waited(self, place: int, late: int | None = None) -> float:
        """Return how long this rank waited for the late rank, or for the last rank."""
        others = self.spans.values() if late is None else (self.spans[late],)
        begin, end = self.spans[place]
        return max(end - begin - min(end - begin for begin, end in others), 0.0)


class Met(NamedTuple):
    """The matched collectives of several ranks."""

    meetings: tuple[Meeting, ...]
    problem: str = ""  # why some or all are not matched


class Late(NamedTuple):
    """The time that the other ranks lose because of one rank."""

    place: int  # its place in the window
    lost_us: Mapping[int, float]  # loss by the number of the step
    share: float  # … as a share of all steps together

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of its late steps."""
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
    """Return the collectives of a rank by their identifying key.

    gloo does not report the group: for a rank in several groups, only DDP's calls in forward and backward count.
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
    """Return when a rank was ready. A late start on a gloo thread does not make the rank late."""
    return call.begin_us if fact.device == "gpu" or call.called_us is None else call.called_us


def _ends_apart(ranks: Sequence[TraceFact], met: Sequence[Meeting]) -> bool:
    """Return True if calls that should end together do not, independent of the ranks' clocks."""
    step = median([step.length_us for fact in ranks for step in fact.steps] or [0.0])
    for place in range(1, len(ranks)):
        both = [meeting.spans for meeting in met if meeting.kind not in _ROOTED and {0, place} <= set(meeting.spans)]
        apart = [spans[place][1] - spans[0][1] for spans in both]
        offset = median(apart or [0.0])
        if median([abs(each - offset) for each in apart] or [0.0]) > ENDS_APART * step:
            return True
    return False


def late(ranks: Sequence[TraceFact], met: Sequence[Meeting]) -> tuple[Late, ...]:
    """Return the others' loss for each rank, the largest first; with many ranks, only the latest ranks."""
    lengths = grouped((step.number, step.length_us) for fact in ranks for step in fact.steps)
    total = sum(mean(lengths[step]) for step in {meeting.step for meeting in met})
    exposed = [Times.union(*(step.exposed for step in fact.steps)) for fact in ranks]
    found = []
    for place in _latest(ranks, met):
        lost = _lost(place, exposed, met)
        found.append(Late(place, lost, sum(lost.values()) / total))
    return tuple(sorted(found, key=lambda one: (-one.share, one.place)))


def _latest(ranks: Sequence[TraceFact], met: Sequence[Meeting]) -> list[int]:
    """Return the ranks that most often came last, by their delay after the median rank."""
    behind = dict.fromkeys(range(len(ranks)), 0.0)
    for meeting in met:
        lasts = {place: end - begin for place, (begin, end) in meeting.spans.items()}
        middle = median(lasts.values())
        for place, last in lasts.items():
            behind[place] += max(middle - last, 0.0)
    return sorted(behind, key=lambda place: -behind[place])[:_MOST_CANDIDATES] if met else []


def _lost(late: int, exposed: Sequence[Times], met: Sequence[Meeting]) -> dict[int, float]:
    """Return the others' exposed waiting for a rank in each step: their lower median.

    The lower median excludes the second-to-last rank, and of three ranks only one can be late.
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


@dataclass(frozen=True, eq=False)
class Window:
    """The traces that ranks made of the same steps."""

    number: int  # from 1, the earliest first
    ranks: tuple[TraceFact, ...]  # by rank
    world_size: int | None  # of the job, if known
    where: str = ""  # `` in window 2`` if several are analyzed

    @property
    def is_whole(self) -> bool:
        """Return True if all ranks of the job are present; without their number in the traces, some may be missing."""
        calls = [call for fact in self.ranks for call in fact.calls]
        size = self.world_size or max((call.ranks or 0 for call in calls), default=1)
        return len(self.ranks) == size and all(fact.rank == place for place, fact in enumerate(self.ranks))

    @cached_property
    def met(self) -> Met:
        """The matched collectives of its ranks."""
        return meet(self.ranks)

    @cached_property
    def late(self) -> tuple[Late, ...]:
        """The other ranks' loss for each rank, the largest first."""
        return late(self.ranks, self.met.meetings)


@once_a_recording
def windows(recording: Recording) -> tuple[Window, ...]:
    """Return the windows to analyze: ``options.window`` is latest, all or a number."""
    every, wanted = _every_window(recording), recording.options.window
    if wanted == "latest":
        return every[-1:]
    if wanted == "all" and len(every) > 1:
        return tuple(replace(window, where=f" in window {window.number}") for window in every)
    return tuple(window for window in every if wanted in ("all", str(window.number)))


@once_a_recording
def problem(recording: Recording) -> str:
    """Return why some or all of these traces cannot be analyzed; empty if all can."""
    facts = [at.fact for at in recording.facts(TraceFact)]
    usable = _usable(facts)
    left_out = [_why_not(fact) for fact in facts if fact not in usable]
    chosen = windows(recording)
    if usable and not chosen:
        left_out.append(_two_jobs(usable) or f"there is no window {recording.options.window}")
    each = (f"window {window.number}: " if len(chosen) > 1 else "" for window in chosen)
    found = [prefix + why for prefix, window in zip(each, chosen, strict=True) if (why := _unsure(window, usable))]
    return "; ".join(dict.fromkeys((*left_out, *found)))


@once_a_recording
def _every_window(recording: Recording) -> tuple[Window, ...]:
    facts = _usable([at.fact for at in recording.facts(TraceFact)])
    if _two_jobs(facts):
        return ()
    return tuple(
        Window(number, tuple(sorted(ranks, key=lambda fact: fact.rank or 0)), ranks[0].world_size)
        for number, ranks in enumerate(_together(facts), start=1)
    )


def _usable(facts: Sequence[TraceFact]) -> list[TraceFact]:
    """Return the facts with steps of one rank; its number is required if there are several."""
    return [fact for fact in facts if fact.steps and fact.processes == 1 and (fact.rank is not None or len(facts) == 1)]


def _why_not(fact: TraceFact) -> str:
    if fact.processes > 1:
        return f"{fact.file}: {fact.processes} processes are merged in it; give one file for each rank"
    if not fact.marked_by:
        return f"{fact.file}: neither profiler.step() nor Optimizer.step separates its steps"
    if not fact.steps:
        return f"{fact.file}: no whole step is in it"
    return f"{fact.file}: neither the trace nor its name shows the rank; name it rank0.json"


def _together(facts: Sequence[TraceFact]) -> list[list[TraceFact]]:
    """Group facts with equal step numbers; without numbers, all first windows of the ranks, all second, and so on."""
    made: list[list[TraceFact]] = []
    for fact in sorted(facts, key=lambda fact: (_numbers(fact, facts)[0], fact.rank or 0)):
        numbers = set(_numbers(fact, facts))
        same = next((ranks for ranks in made if numbers & set(_numbers(ranks[0], facts))), None)
        if same is None:
            made.append([fact])
        else:
            same.append(fact)
    return made


def _numbers(fact: TraceFact, facts: Sequence[TraceFact]) -> list[tuple[str, int]]:
    if fact.marked_by == "profiler":
        return [("steps", step.number) for step in fact.steps]
    return [("files", sum(one.rank == fact.rank and one.begin_us < fact.begin_us for one in facts))]


def _two_jobs(facts: Sequence[TraceFact]) -> str:
    for ranks in _together(facts):
        [(rank, count)] = Counter(fact.rank for fact in ranks).most_common(1)
        if count > 1:
            names = " and ".join(fact.file for fact in ranks if fact.rank == rank)
            return f"rank {rank} occurs {count} times with the same steps ({names}): pass each job separately"
        if len({fact.world_size for fact in ranks}) > 1:
            sizes = " and ".join(sorted({str(fact.world_size or "an unknown number of") for fact in ranks}))
            return f"the traces are of jobs of {sizes} ranks: pass each job separately"
    return ""


def _unsure(window: Window, usable: Sequence[TraceFact]) -> str:
    here, size = len(window.ranks), window.world_size
    calls = any(fact.calls for fact in window.ranks)
    if not calls:
        return "the trace has no collective, so it does not show which rank waits"
    if not window.is_whole:
        elsewhere = {fact.rank for fact in usable} - {fact.rank for fact in window.ranks}
        others = "; the traces of others are of other steps" if elsewhere else ""
        unknown = "waiting or transfer is not known" if here == 1 else "others may have come later"
        return (
            f"{here} of {size or 'an unknown number of'} ranks {'is' if here == 1 else 'are'} here{others}: {unknown}"
        )
    if here == 1:
        return ""
    if silent := next((fact.file for fact in window.ranks if not fact.calls), ""):
        return f"{silent}: it has no collective, although the other ranks have some"
    if window.met.problem or window.met.meetings:
        return window.met.problem
    return "no collective of its ranks can be matched"
