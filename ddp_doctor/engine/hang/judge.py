"""Who is to blame when a trial got stuck or broke: a pure function of the ranks' evidence.

The causes are tried in the order of certainty. A process that is gone, stopped or raised an exception of its own
explains what its peers report. Steps and torch's flight recorder decide only among ranks that are all alive and
waiting. A rank is named only on evidence that points at it; where the evidence points at a link, the pair is named,
and where it points nowhere, nobody is.

Ranks are compared by their place; only deaths by time, and those on several nodes only as far as their clocks can be
aligned (judgment.py).
"""

import re
import signal
from collections.abc import Mapping, Sequence

from ddp_doctor.engine.hang.judgment import (
    ALONE,
    COLLECTIVES,
    STEPS_OF_A_JOB,
    Clock,
    Judgment,
    Kind,
    Place,
    by_step,
    clocks,
    numbers,
    place_of,
    reached,
    shared_step,
    where_it_waits,
)
from ddp_doctor.engine.waits.from_trial import announced, call_of, recorded
from ddp_doctor.engine.waits.judge import different_calls
from ddp_doctor.engine.waits.standings import Call, Group
from ddp_doctor.knowledge.deadlines import STARVED_SHARE, STILL_CPU_S_PER_S
from ddp_doctor.knowledge.victims import blames_peer, is_unfit, names_own_host
from ddp_doctor.model.base import grouped
from ddp_doctor.model.trial import INIT, RankEvidence, Step, TrialRecord
from ddp_doctor.views.failed_trials import words_of

#: Deaths this close together have one cause: the forkserver, the agent or the machine.
_SAME_MOMENT_S = 0.25
_SIGABRT = -6
#: Signals for what the process itself did: no death of a peer sends them.
_OWN_FAULTS = (-4, -5, -7, -8, -11, -31)  # SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS
#: How a rank ends because another rank died: gloo and NCCL's watchdog abort a rank whose peer vanished,
#: torchrun sends SIGTERM.
_ANSWERS = (_SIGABRT, -15)
#: The one complaint of gloo that tells of a wrong size (gloo transport/tcp/pair.cc).
_GLOO_SIZE = re.compile(r"op\.preamble\.length|op\.nbytes")
_OF_A_LIBRARY = re.compile(r"\bNCCL error\b|\bNCCL \w+ failed\b|ncclCommInit|NCCL communicator|gloo[:/]", re.IGNORECASE)
#: nccl2's log, where the rank's own GPU is what failed (WorkNCCL.cpp, checkStatus).
_OWN_GPU = re.compile(r"CUDA error during (?:start|end) event query: ")
#: gloo aborts a rank in its own transport, on whatever its peer did (gloo/common/logging.h).
_GLOO_SPEAKS = re.compile(r"gloo::|gloo/transport")
#: How NCCL's watchdogs announce that they end the rank, and why: nccl2's abortProcess, and the older one's
#: terminate handler and heartbeat monitor (torch 2.15 c10d/nccl2/ProcessGroupNCCL.cpp, ProcessGroupNCCL.cpp).
_WATCHDOG_ENDS = re.compile(
    r"(?:Aborting process on rank \d+ due to|watchdog thread terminated with exception:"
    r"|Terminating the process after attempting to dump debug info, due to) (?P<reason>[^\n]*)"
)
_TIME_OUT = re.compile(r"operation timed out|operation timeout|collective timeout")
#: The older watchdog's exception has NCCL's own last error in the lines below.
_BELOW = 500


def judge(trial: TrialRecord) -> Judgment:
    """Name the cause of a trial that did not finish."""
    ranks = [rank for rank in trial.evidence if not rank.done]
    if trial.outcome == "slow":  # which a rank that is stopped is not, however busy the others are
        return _stopped(ranks, trial) or Judgment("slow", waiting=tuple(rank.rank for rank in ranks))
    causes = (
        _mismatch,
        _died,
        _at_odds,
        _raised,
        _stopped,
        _never_began,
        _behind,
        _uninterruptible,
        _outside,
        _deadlock,
    )
    for cause in causes:
        found = cause(ranks, trial)
        if found is not None:
            return found
    return Judgment("unsure", waiting=numbers(ranks))


def tells_of_a_peer(rank: RankEvidence) -> bool:
    """Whether a rank's exception is about a peer. Where it leaves the cause out, the rank's log may have it."""
    return blames_peer(words_of(rank)) and not _OWN_GPU.search(rank.output_tail)


# --- the causes, most certain first --------------------------------------------------------------


def _died(ranks: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    dead = [rank for rank in ranks if rank.exited_at is not None]
    own = [rank for rank in dead if rank.exit_code != _SIGABRT or not _aborted_over_a_peer(rank.output_tail)]
    if not own:
        if not any(_GLOO_SIZE.search(rank.output_tail) for rank in dead):
            return None
        # gloo aborts the rank that *receives* a message of the wrong size: it is the victim, and its recorder is lost.
        # A survivor whose real call is not its announced one did it.
        calls = {rank.rank: call_of(rank.flight[-1], Group(rank.flight[-1].group)) for rank in ranks if rank.flight}
        return _mismatched(ranks, calls, _off_the_plan(ranks, calls, len(ranks)))
    causes = _first_to_go(own, trial)
    untold = trial.launcher == "torchrun" and not any(rank.began for rank in ranks)  # its own failure
    if not causes or untold:
        return Judgment("unsure", waiting=numbers(ranks))
    if len(ranks) > 1 and len(causes) == len(ranks):
        return Judgment("died-everywhere", waiting=numbers(ranks), step=shared_step(ranks))
    return _named("died", causes, ranks)


def _aborted_over_a_peer(output: str) -> bool:
    """Whether what a rank printed before it aborted says that it did so because a peer left or never came."""
    if _GLOO_SPEAKS.search(output):
        return True
    ends = list(_WATCHDOG_ENDS.finditer(output))
    return bool(ends) and all(
        (_TIME_OUT.search(end["reason"]) or blames_peer(end["reason"]))
        and not names_own_host(output[end.end() : end.end() + _BELOW])
        for end in ends
    )


def _named(kind: Kind, guilty: Sequence[RankEvidence], ranks: Sequence[RankEvidence]) -> Judgment:
    """These are to blame; of the others it is said in which step they are."""
    innocent = [rank for rank in ranks if rank not in guilty]
    return Judgment(kind, numbers(guilty), numbers(innocent), shared_step(innocent))


def _first_to_go(dead: Sequence[RankEvidence], trial: TrialRecord) -> list[RankEvidence]:
    """The ranks that did not die because of another death, as far as the moments can be compared."""
    nodes = {rank.node for rank in dead}
    known = clocks(by_step(trial), nodes) if len(nodes) > 1 else dict.fromkeys(nodes, Clock(0.0, 0.0))
    # A peer's death may have ended the others. Of torchrun's, 0 is a code that it did not tell.
    answers = (*_ANSWERS, 0) if trial.launcher == "torchrun" else _ANSWERS
    first = [rank for rank in dead if rank.exit_code not in answers]
    if not known:  # no order between the nodes: a death that may be an answer names nobody
        return first
    gone = {rank.rank: (rank.exited_at or 0.0) - known[rank.node].ahead_s for rank in dead}
    margin = _SAME_MOMENT_S + 2 * max(clock.uncertainty_s for clock in known.values())
    at_once = [rank for rank in dead if gone[rank.rank] - min(gone.values()) <= margin]
    unknown = trial.launcher == "torchrun" and not any(rank.exit_code for rank in at_once)
    causes = [rank for rank in at_once if rank in first] or ([] if unknown else at_once)
    alike = {(rank.exit_code, _last_step(rank)) for rank in causes}
    return [
        rank
        for rank in dead
        if rank in causes or (_ended_by_itself(rank, trial) and (rank.exit_code, _last_step(rank)) in alike)
    ]


def _ended_by_itself(rank: RankEvidence, trial: TrialRecord) -> bool:
    """Whether no death of a peer can have ended it, however much later it ended.

    The doctor's own ranks get no SIGKILL before they are judged, and one that is in no step waits for nobody.
    """
    if rank.exit_code in _OWN_FAULTS:
        return True
    alone = rank.exit_code == -signal.SIGKILL or (rank.open_step is None and rank.exit_code not in _ANSWERS)
    return alone and trial.launcher != "torchrun"


def _last_step(rank: RankEvidence) -> tuple[str, int] | None:
    return rank.steps[-1].key if rank.steps else None


def _mismatched(ranks: Sequence[RankEvidence], calls: Mapping[int, Call], suspects: tuple[int, ...]) -> Judgment:
    innocent = [rank for rank in ranks if rank.rank not in suspects]
    step, flights = shared_step(innocent), tuple(sorted(calls.items()))
    return Judgment("mismatch", suspects, numbers(innocent), step, flights=flights)


def _raised(ranks: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    everyone = trial.evidence
    own = [rank for rank in ranks if rank.raised is not None and not tells_of_a_peer(rank)]
    if not own:
        return None
    alike = grouped(((rank.raised.type, rank.raised.where), rank) for rank in own if rank.raised)
    if len(everyone) > 1 and len(own) == len(everyone):
        return Judgment("raised-everywhere", waiting=numbers(ranks), step=shared_step(ranks))
    most = max(alike.values(), key=len)
    if len(everyone) == 1 or 2 * len(most) <= len(everyone):
        return _named("raised", own, ranks)
    for cause in (_stopped, _never_began, _behind):  # a rank that never came may be what most met
        found = cause(ranks, trial)
        if found is not None and found.suspects and not {*numbers(most)} & {*found.suspects}:
            return found
    return Judgment("unsure", waiting=numbers(ranks), step=shared_step(ranks))


def _at_odds(ranks: Sequence[RankEvidence], _trial: TrialRecord) -> Judgment | None:
    """A rank that says that what a peer sent does not fit: who reads first says so, and either may be wrong.

    Another one may then stumble over what it read. An exception of a rank's own host or code counts more.
    """
    messages = [words_of(rank) for rank in ranks if rank.raised is not None]
    if not any(map(is_unfit, messages)) or not all(map(_follows_from_odds, messages)):
        return None
    left = [rank for rank in ranks if not _ended(rank)]
    return Judgment("at-odds", waiting=numbers(left), step=shared_step(ranks))


def _follows_from_odds(message: str) -> bool:
    """Whether NCCL or gloo says it, or a victim: beside ranks that disagree it follows from that."""
    is_a_librarys = _OF_A_LIBRARY.search(message) is not None and not names_own_host(message)
    return is_a_librarys or blames_peer(message)


def _stopped(ranks: Sequence[RankEvidence], _trial: TrialRecord) -> Judgment | None:
    return _not_running(ranks, "stopped", "Tt")


def _uninterruptible(ranks: Sequence[RankEvidence], _trial: TrialRecord) -> Judgment | None:
    """State D is seen once and may pass, so it counts only where no rank is missing from a step."""
    return _not_running(ranks, "uninterruptible", "D")


def _not_running(ranks: Sequence[RankEvidence], kind: Kind, letters: str) -> Judgment | None:
    found = [rank for rank in ranks if rank.state and rank.state in letters]
    if not found or len(found) >= max(len(ranks), 2):
        return None
    return _named(kind, found, ranks)


def _never_began(ranks: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    missing = [rank for rank in ranks if not rank.began]
    if not missing or len(missing) == len(trial.evidence):
        return None
    # A rank that computes (imports torch, on a busy machine) may still come.
    missing = [rank for rank in missing if (rank.cpu_s_per_s or 0.0) < STILL_CPU_S_PER_S and not _starves(rank, ranks)]
    if not missing:
        return Judgment("unsure", waiting=numbers(ranks), step=shared_step(ranks))
    return _named("never-began", missing, ranks)


def _mismatch(ranks: Sequence[RankEvidence], _trial: TrialRecord) -> Judgment | None:
    """Different calls at one place: the flight recorder knows what each rank really enqueued."""
    if (ruling := different_calls(recorded(ranks))) is not None:
        calls = ruling.calls
        return _mismatched(ranks, calls, ruling.suspects or _off_the_plan(ranks, calls, len(calls)))
    if (ruling := different_calls(announced(ranks))) is not None:
        steps = {rank.rank: rank.open_step for rank in ranks if rank.rank in ruling.calls}
        waiting = tuple(rank for rank in steps if rank not in ruling.suspects)
        return Judgment("mismatch", ruling.suspects, waiting, steps[(waiting or tuple(steps))[0]])
    return None


def _off_the_plan(ranks: Sequence[RankEvidence], calls: Mapping[int, Call], compared: int) -> tuple[int, ...]:
    """Between two equal halves: the ranks whose real call is not the one they had announced.

    Empty where that is true of more than half of them: then the announcements are wrong.
    """
    off = []
    for rank in ranks:
        step, call = rank.open_step or (rank.steps[-1] if rank.steps else None), calls.get(rank.rank)
        if step is None or call is None or step.name not in COLLECTIVES:
            continue
        # _all_gather_base is an all_gather, and nccl2's all_to_all_single an all_to_all.
        op = call.op.removeprefix("_").removesuffix("_base").removesuffix("_single")
        has_its_shape = "[" not in step.detail or any(str(list(size)) in step.detail for size in call.sizes)
        if step.name != op or not has_its_shape:
            off.append(rank.rank)
    return tuple(off) if 2 * len(off) <= compared else ()


def _behind(ranks: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    """Ranks that never entered a step in which others wait for them."""
    waiting = {rank.rank: step for rank in ranks if (step := rank.open_step) is not None}
    if not waiting:
        return None
    # At one place a transfer comes before a collective: the ranks in it have passed nothing.
    step = min(waiting.values(), key=lambda open_: (place_of(open_, trial), not open_.peers))
    if step.peers:
        return _absent_peer([rank for rank in ranks if rank.rank in waiting], ranks)
    here = place_of(step, trial)
    there = [open_ for open_ in waiting.values() if place_of(open_, trial) == here]
    awaited = {rank for open_ in there for rank in open_.members or trial.ranks}
    absent = [rank for rank in ranks if rank.rank in awaited and reached(rank, trial) < here and not _ended(rank)]
    if absent and not (absent := [rank for rank in absent if not _starves(rank, ranks)]):
        return Judgment("unsure", waiting=tuple(waiting), step=step)
    if absent:
        step = next((open_ for open_ in there if absent[0].rank in open_.members), step)
        waits = [rank for rank in waiting if not step.members or (waiting[rank] in there and waiting[rank].members)]
        return Judgment("never-entered", numbers(absent), tuple(waits), step)
    return _group_hangs(waiting, here, trial) or _left_behind(ranks, trial, here)


def _starves(rank: RankEvidence, ranks: Sequence[RankEvidence]) -> bool:
    """Return True if it hardly had a processor, on the only node: it may arrive if that is less busy."""
    granted = rank.cpu_granted
    return granted is not None and granted < STARVED_SHARE and rank.state == "R" and len({r.node for r in ranks}) == 1


def _group_hangs(waiting: Mapping[int, Step], here: Place, trial: TrialRecord) -> Judgment | None:
    """All ranks of one group of an axis stand in a step that the other groups left."""
    further = any(place_of(step, trial) > here for step in waiting.values())
    there = {rank: step for rank, step in waiting.items() if place_of(step, trial) == here}
    groups = sorted({step.members for step in there.values()})
    if not further or len(groups) != 1 or not groups[0] or {*groups[0]} != there.keys():
        return None
    return Judgment("all-entered", (), groups[0], there[groups[0][0]])


def _left_behind(ranks: Sequence[RankEvidence], trial: TrialRecord, here: Place) -> Judgment | None:
    """The one rank, or the few, still in a step that all others left, while some wait further on.

    A rank that only sends leaves a step first.
    """
    waiting = {rank.rank: step for rank in ranks if (step := rank.open_step) is not None}
    further = [step for step in waiting.values() if place_of(step, trial) > here]
    last = [rank for rank in ranks if rank.rank in waiting and place_of(waiting[rank.rank], trial) == here]
    if any(_ended(rank) for rank in last):
        return None
    if len(last) != 1 and 2 * len(last) >= len(trial.evidence):
        return _left_in_init(last, trial)
    if not further or any(step.peers for step in waiting.values()):
        return None
    doing = {rank.rank: where_it_waits(rank) for rank in last}
    if "unknown" in doing.values():  # it did not answer in time: it may wait for something that was lost
        return Judgment("unsure", waiting=numbers(last), step=last[0].open_step)
    if "outside" not in doing.values():
        # Of two ranks in a collective the link is to blame; of more the pairwise check says which link, if it is one.
        # The control store is asked over another link.
        everyone = tuple(sorted(numbers(trial.evidence)))
        pairs = (everyone[:2],) if len(everyone) == 2 and "store" not in doing.values() else ()
        return Judgment("pair" if pairs else "left-behind", (), numbers(last), last[0].open_step, pairs)
    step = min(further, key=lambda open_: place_of(open_, trial))
    there = place_of(step, trial)
    absent = [
        rank
        for rank in ranks
        if reached(rank, trial) < there and not _ended(rank) and doing.get(rank.rank, "outside") == "outside"
    ]
    return Judgment("never-entered", numbers(absent), tuple(rank.rank for rank in ranks if rank not in absent), step)


def _left_in_init(last: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    """Many ranks in init_process_group that others left: the ranks that left it are not the missing ones."""
    step = last[0].open_step
    makes_the_group = step is not None and step.name == INIT and len(last) < len(trial.evidence)
    if not makes_the_group or any(rank.state == "D" for rank in last):
        return None
    return Judgment("left-behind", (), numbers(last), step)


def _ended(rank: RankEvidence) -> bool:
    """Whether a rank failed or is gone: then it is judged by its exception, not by its place."""
    return rank.raised is not None or rank.exited_at is not None


def _absent_peer(waiting: Sequence[RankEvidence], ranks: Sequence[RankEvidence]) -> Judgment | None:
    """Point-to-point: a rank whose partner waits, and that itself waits for nobody."""
    waits_for = {rank.rank: set(step.peers) for rank in waiting if (step := rank.open_step) is not None}
    idle = {rank.rank for rank in ranks} - waits_for.keys()
    by_rank = {rank.rank: rank for rank in ranks}
    missing = {
        (rank, peer)
        for rank, peers in waits_for.items()
        for peer in peers & idle
        if _transfers(by_rank[peer], rank) < _transfers(by_rank[rank], peer)
    }
    if not missing:
        return None
    suspects = sorted({peer for _, peer in missing})
    callers = tuple(sorted({rank for rank, _ in missing}))
    entered = next(rank for rank in waiting if rank.rank in callers).open_step
    return Judgment("never-entered", tuple(suspects), callers, entered)


def _transfers(rank: RankEvidence, peer: int) -> int:
    """How often a rank entered a transfer with this peer: a peer that did so as often is not missing."""
    return sum(peer in step.peers for step in rank.steps)


def _outside(ranks: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    """In a step that is the user's code: ranks in no collective, while all others wait in one."""
    step, doing = shared_step(ranks), {rank.rank: where_it_waits(rank) for rank in ranks}
    if step is None or step.name not in STEPS_OF_A_JOB or len(ranks) < len(trial.evidence):
        return None
    absent = tuple(rank for rank, where in doing.items() if where == "outside")
    waiting = tuple(rank for rank, where in doing.items() if where == "collective")
    if not absent or not waiting or len(absent) + len(waiting) < len(ranks):
        return None
    return Judgment("never-entered", absent, waiting, step)


def _deadlock(ranks: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    """Everyone entered and nobody left: a link. A point-to-point step says which."""
    steps = {rank.rank: step for rank in ranks if (step := rank.open_step) is not None}
    if len(steps) < len(ranks) or not steps or ALONE & {step.name for step in steps.values()}:
        return None
    of_a_job = STEPS_OF_A_JOB & {step.name for step in steps.values()}
    if of_a_job and not all(where_it_waits(rank) == "collective" for rank in ranks):
        return None  # some may still compute
    pairs = {
        (min(rank, peer), max(rank, peer))
        for rank, step in steps.items()
        for peer in step.peers
        if peer in steps and rank in steps[peer].peers
    }
    if pairs:
        ends = {rank for pair in pairs for rank in pair}
        waiting = tuple(rank for rank in steps if rank not in ends)
        return Judgment("pair", (), waiting, steps[min(ends)], tuple(sorted(pairs)))
    gone = any(rank.exited_at is not None for rank in ranks)
    one_place = len({step.key for step in steps.values()}) == 1
    if len(ranks) == len(trial.evidence) and one_place and not gone and not next(iter(steps.values())).peers:
        step = steps[ranks[0].rank].model_copy(update={"members": ()})  # each group of an axis is in it
        return Judgment("all-entered", (), tuple(steps), step)
    return None
