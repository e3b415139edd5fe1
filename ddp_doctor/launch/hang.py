"""Who is to blame when a trial got stuck or broke: a pure function of the ranks' evidence.

The order is the order of certainty. A process that is gone, stopped or raised an exception of its
own explains what its peers report; only among ranks that are all alive and waiting do the steps
and torch's flight recorder decide. A rank is named only on evidence that points at it; where the
evidence points at a link, the pair is named, and where it points nowhere, nobody is.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddp_doctor.model.trial import FlightEntry, RankEvidence, Step, TrialRecord

Kind = Literal[
    "died",
    "raised",
    "raised-everywhere",
    "stopped",
    "uninterruptible",
    "never-began",
    "never-entered",
    "mismatch",
    "pair",
    "all-entered",
    "slow",
    "unsure",
]

#: Deaths this close together have one cause: the forkserver, the agent or the machine.
_SAME_MOMENT_S = 0.25
_SIGABRT = -6


@dataclass(frozen=True)
class Judgement:
    """What happened and who did it. ``step`` is the step that the innocent wait in."""

    kind: Kind
    suspects: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    step: Step | None = None
    pairs: tuple[tuple[int, int], ...] = ()  # links of which both ends entered and neither left
    flights: tuple[tuple[int, FlightEntry], ...] = ()  # of a mismatch: what each rank really called

    @property
    def names_a_rank(self) -> bool:
        """Whether one or more ranks, and not a link or nobody, are to blame."""
        return bool(self.suspects)


def judge(trial: TrialRecord) -> Judgement:
    """Name the cause of a trial that did not finish."""
    ranks = [one for one in trial.evidence if not one.done]
    if trial.outcome == "slow":
        return Judgement("slow", waiting=tuple(one.rank for one in ranks))
    for look in (_mismatch, _died, _raised, _not_running, _never_began, _behind, _deadlock):
        found = look(ranks, trial.evidence)
        if found is not None:
            return found
    return Judgement("unsure", waiting=_numbers(ranks))


def _numbers(ranks: Sequence[RankEvidence]) -> tuple[int, ...]:
    return tuple(one.rank for one in ranks)


def _waiting(ranks: Sequence[RankEvidence], besides: Sequence[RankEvidence]) -> tuple[int, ...]:
    return tuple(one.rank for one in ranks if one not in besides)


def open_step(one: RankEvidence) -> Step | None:
    """The step a rank entered and has not left."""
    last = one.steps[-1] if one.steps else None
    return last if last is not None and last.left_at is None else None


def _shared_step(ranks: Sequence[RankEvidence]) -> Step | None:
    """The step that most of these ranks stand in."""
    steps = [step for one in ranks if (step := open_step(one)) is not None]
    counted = Counter((step.check, step.seq) for step in steps)
    if not counted:
        return None
    key = counted.most_common(1)[0][0]
    return next(step for step in steps if (step.check, step.seq) == key)


# --- the looks, most certain first ---------------------------------------------------------------


def _died(ranks: Sequence[RankEvidence], _all: Sequence[RankEvidence]) -> Judgement | None:
    dead = [one for one in ranks if one.exited_at is not None]
    if not dead:
        return None
    if all(one.exit_code == _SIGABRT and "gloo" in one.output_tail for one in dead):
        return _aborted_over_a_mismatch(ranks)
    first = min(one.exited_at or 0.0 for one in dead)
    at_once = [one for one in dead if (one.exited_at or 0.0) - first <= _SAME_MOMENT_S]
    # gloo aborts a rank whose peer vanished: an abort beside another kind of death is an echo.
    causes = [one for one in at_once if one.exit_code != _SIGABRT] or at_once
    if len(ranks) > 1 and len(causes) == len(ranks):
        return Judgement("unsure", waiting=_numbers(ranks))
    innocent = [one for one in ranks if one not in causes]
    return Judgement("died", _numbers(causes), _numbers(innocent), _shared_step(innocent))


def _aborted_over_a_mismatch(ranks: Sequence[RankEvidence]) -> Judgement:
    """gloo aborts the rank that *receives* a message of the wrong size: it is the victim.

    The recorder of the dead rank is lost; a survivor whose real call is not its announced one did it.
    """
    calls = {one.rank: one.flight[-1] for one in ranks if one.flight}
    suspects = tuple(rank for rank in calls if rank in _off_the_plan(ranks, calls, dead_too=True))
    innocent = [one for one in ranks if one.rank not in suspects]
    flights = tuple((rank, calls[rank]) for rank in sorted(calls))
    return Judgement("mismatch", suspects, _numbers(innocent), _shared_step(innocent), flights=flights)


def _raised(ranks: Sequence[RankEvidence], everyone: Sequence[RankEvidence]) -> Judgement | None:
    own = [one for one in ranks if one.raised is not None and not one.raised.blames_peer]
    if not own:
        return None
    alike = {(one.raised.type, one.raised.where) for one in own if one.raised is not None}
    if len(everyone) > 1 and len(own) == len(everyone):
        kind: Kind = "raised-everywhere" if len(alike) == 1 else "unsure"
        return Judgement(kind, waiting=_numbers(ranks), step=_shared_step(ranks))
    innocent = [one for one in ranks if one not in own]
    return Judgement("raised", _numbers(own), _numbers(innocent), _shared_step(innocent))


def _not_running(ranks: Sequence[RankEvidence], _all: Sequence[RankEvidence]) -> Judgement | None:
    kinds: tuple[tuple[Kind, str], ...] = (("stopped", "Tt"), ("uninterruptible", "D"))
    for kind, letters in kinds:
        found = [one for one in ranks if one.state and one.state in letters]
        if found and len(found) < max(len(ranks), 2):
            innocent = [one for one in ranks if one not in found]
            return Judgement(kind, _numbers(found), _numbers(innocent), _shared_step(innocent))
    return None


def _never_began(ranks: Sequence[RankEvidence], everyone: Sequence[RankEvidence]) -> Judgement | None:
    missing = [one for one in ranks if not one.began]
    if not missing or len(missing) == len(everyone):
        return None
    return Judgement("never-began", _numbers(missing), _waiting(ranks, missing), _shared_step(ranks))


def _mismatch(ranks: Sequence[RankEvidence], _all: Sequence[RankEvidence]) -> Judgement | None:
    """Different calls at one place: the flight recorder knows what each rank really enqueued."""
    by_seq: dict[int, dict[int, FlightEntry]] = defaultdict(dict)
    for one in ranks:
        for entry in one.flight:
            by_seq[entry.seq][one.rank] = entry
    for seq in sorted(by_seq):
        calls = by_seq[seq]
        groups: dict[object, list[int]] = defaultdict(list)
        for rank, entry in calls.items():
            groups[entry.op, entry.sizes, entry.dtypes].append(rank)
        if len(groups) > 1:
            suspects = _minority(groups) or _off_the_plan(ranks, calls)
            waiting = tuple(one.rank for one in ranks if one.rank not in suspects)
            stands_in = _shared_step([one for one in ranks if one.rank in waiting])
            return Judgement("mismatch", suspects, waiting, stands_in, flights=tuple(sorted(calls.items())))
    return _announced_mismatch(ranks)


def _announced_mismatch(ranks: Sequence[RankEvidence]) -> Judgement | None:
    """Without a recorder: what the ranks said they were about to call at one step."""
    by_key: dict[tuple[str, int], dict[int, Step]] = defaultdict(dict)
    for one in ranks:
        step = open_step(one)
        if step is not None and not step.peers:
            by_key[step.check, step.seq][one.rank] = step
    for steps in by_key.values():
        groups: dict[object, list[int]] = defaultdict(list)
        for rank, step in steps.items():
            groups[step.name, step.detail].append(rank)
        if len(groups) > 1:
            suspects = _minority(groups)
            waiting = tuple(rank for rank in steps if rank not in suspects)
            return Judgement("mismatch", suspects, waiting, steps[(waiting or tuple(steps))[0]])
    return None


def _minority(groups: dict[object, list[int]]) -> tuple[int, ...]:
    """The ranks outside the largest group; nobody where two groups are equally large."""
    sizes = sorted((len(ranks) for ranks in groups.values()), reverse=True)
    if sizes[0] == sizes[1]:
        return ()
    largest = max(groups.values(), key=len)
    return tuple(sorted(rank for ranks in groups.values() for rank in ranks if rank not in largest))


def _off_the_plan(
    ranks: Sequence[RankEvidence], calls: dict[int, FlightEntry], *, dead_too: bool = False
) -> tuple[int, ...]:
    """Between two equal halves: the rank whose real call is not the one it had announced."""
    off = []
    for one in ranks:
        step, entry = open_step(one) or (one.steps[-1] if one.steps else None), calls.get(one.rank)
        if step is not None and entry is not None and not _is_announced(step, entry):
            off.append(one.rank)
    compared = len(ranks) if dead_too else len(calls)
    return tuple(off) if len(off) < compared else ()


def _is_announced(step: Step, entry: FlightEntry) -> bool:
    shapes = [str(list(size)) for size in entry.sizes]
    return step.name == entry.op and (not step.detail or any(shape in step.detail for shape in shapes))


def _behind(ranks: Sequence[RankEvidence], _all: Sequence[RankEvidence]) -> Judgement | None:
    """Ranks that never entered a step in which others wait for them."""
    waiting = [one for one in ranks if open_step(one) is not None]
    if not waiting:
        return None
    first_open = min((_place(one, ranks) for one in waiting), default=None)
    earliest = next(one for one in waiting if _place(one, ranks) == first_open)
    step = open_step(earliest)
    if step is None or step.peers:
        return _absent_peer(waiting, ranks)
    # Whoever stands further on has passed this step, so only those before it are missing.
    absent = [one for one in ranks if one not in waiting]
    if not absent:
        return None
    return Judgement("never-entered", _numbers(absent), _numbers(waiting), step)


def _place(one: RankEvidence, ranks: Sequence[RankEvidence]) -> tuple[int, int]:
    """Where a rank stands: the number of checks it has passed as seen by all, and its step."""
    checks: list[str] = []
    for other in ranks:
        for taken in other.steps:
            if taken.check not in checks:
                checks.append(taken.check)
    step = open_step(one)
    assert step is not None
    return checks.index(step.check), step.seq


def _absent_peer(waiting: Sequence[RankEvidence], ranks: Sequence[RankEvidence]) -> Judgement | None:
    """Point-to-point: a rank whose partner waits, and that itself waits for nobody."""
    waits_for = {one.rank: set(step.peers) for one in waiting if (step := open_step(one)) is not None}
    idle = {one.rank for one in ranks} - waits_for.keys()
    suspects = sorted({peer for peers in waits_for.values() for peer in peers} & idle)
    if not suspects:
        return None
    callers = tuple(sorted(rank for rank, peers in waits_for.items() if peers & set(suspects)))
    entered = open_step(next(one for one in waiting if one.rank in callers))
    return Judgement("never-entered", tuple(suspects), callers, entered)


def _deadlock(ranks: Sequence[RankEvidence], everyone: Sequence[RankEvidence]) -> Judgement | None:
    """Everyone entered and nobody left: a link. A point-to-point step says which."""
    steps = {one.rank: step for one in ranks if (step := open_step(one)) is not None}
    if len(steps) < len(ranks) or not steps:
        return None
    pairs = {
        (min(rank, peer), max(rank, peer))
        for rank, step in steps.items()
        for peer in step.peers
        if peer in steps and rank in steps[peer].peers
    }
    if pairs:
        ends = {rank for pair in pairs for rank in pair}
        waiting = tuple(rank for rank in steps if rank not in ends)
        return Judgement("pair", (), waiting, steps[min(ends)], tuple(sorted(pairs)))
    if len(ranks) == len(everyone) and not any(step.peers for step in steps.values()):
        return Judgement("all-entered", (), tuple(steps), _shared_step(ranks))
    return None
