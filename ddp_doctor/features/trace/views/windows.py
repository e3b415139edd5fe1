"""Which traces belong together: the windows of a job, and the ranks in each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.views.arrivals import Late, Met, late, meet
from ddp_doctor.model.recording import Recording, once_a_recording


@dataclass(frozen=True, eq=False)
class Window:
    """The traces that ranks made of the same steps."""

    number: int  # from 1, the earliest first
    ranks: tuple[TraceFact, ...]  # by rank
    world_size: int | None  # of the job, where it is told
    where: str = ""  # `` in window 2`` where several are judged

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the job are here. Whose traces do not tell their number may be some of more."""
        calls = [call for fact in self.ranks for call in fact.calls]
        size = self.world_size or max((call.ranks or 0 for call in calls), default=1)
        return len(self.ranks) == size and all(fact.rank == place for place, fact in enumerate(self.ranks))

    @cached_property
    def met(self) -> Met:
        """The collectives in which its ranks met."""
        return meet(self.ranks)

    @cached_property
    def late(self) -> tuple[Late, ...]:
        """What the others lose by each rank, the one by which they lose most first."""
        return late(self.ranks, self.met.meetings)


@once_a_recording
def windows(recording: Recording) -> tuple[Window, ...]:
    """The windows that are judged: ``options.window`` is latest, all or a number."""
    every, wanted = _every_window(recording), recording.options.window
    if wanted == "latest":
        return every[-1:]
    if wanted == "all" and len(every) > 1:
        return tuple(replace(window, where=f" in window {window.number}") for window in every)
    return tuple(window for window in every if wanted in ("all", str(window.number)))


@once_a_recording
def problem(recording: Recording) -> str:
    """Why nothing, or not all, of these traces can be judged; empty where all can."""
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
    """Those with steps of one rank; which rank it is has to be told where there are several."""
    return [fact for fact in facts if fact.steps and fact.processes == 1 and (fact.rank is not None or len(facts) == 1)]


def _why_not(fact: TraceFact) -> str:
    if fact.processes > 1:
        return f"{fact.file}: {fact.processes} processes are merged in it; give one file for each rank"
    if not fact.marked_by:
        return f"{fact.file}: neither profiler.step() nor Optimizer.step tells its steps apart"
    if not fact.steps:
        return f"{fact.file}: no whole step is in it"
    return f"{fact.file}: neither the trace nor its name tells the rank; name it rank0.json"


def _together(facts: Sequence[TraceFact]) -> list[list[TraceFact]]:
    """Those with steps of the same numbers; where the profiler tells none, the first of each rank, the second …"""
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
            return f"rank {rank} is there {count} times with the same steps ({names}): give each job by itself"
        if len({fact.world_size for fact in ranks}) > 1:
            sizes = " and ".join(sorted({str(fact.world_size or "an untold number of") for fact in ranks}))
            return f"traces of jobs of {sizes} ranks lie together: give each job by itself"
    return ""


def _unsure(window: Window, usable: Sequence[TraceFact]) -> str:
    here, size = len(window.ranks), window.world_size
    calls = any(fact.calls for fact in window.ranks)
    if not calls:
        return "no collective is in it: who waits for whom cannot be told"
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
        return f"{silent}: no collective is in it, although the other ranks have some"
    if window.met.problem or window.met.meetings:
        return window.met.problem
    return "no collective of its ranks can be matched"
