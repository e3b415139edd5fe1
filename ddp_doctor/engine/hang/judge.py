"""Find the rank or link that caused a trial to hang or fail: a pure function of the ranks' evidence.

Causes are tried in the order of certainty. A process that exited, was stopped or raised its own exception
explains what its peers report. Steps and torch's flight recorder decide only if all ranks are alive and waiting. A rank
is named only on evidence against it. Evidence against a link names its pair of ranks, and other evidence names no rank.

Ranks are compared by their place. Only deaths are compared by time, across nodes only if their clocks can be aligned
(judgment.py).
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
from ddp_doctor.parse.frames import fatal_stack
from ddp_doctor.views.failed_trials import words_of

#: Deaths this close together have one cause: the forkserver, the agent or the machine.
_SAME_MOMENT_S = 0.25
_SIGABRT = -6
#: Signals caused by the process itself: the death of a peer does not send them.
_OWN_FAULTS = (-4, -5, -7, -8, -11, -31)  # SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS
#: How a rank ends because another rank died: gloo and NCCL's watchdog abort a rank whose peer vanished, torchrun sends
#: SIGTERM.
_ANSWERS = (_SIGABRT, -15)
#: The only gloo error that reports a wrong size (gloo transport/tcp/pair.cc).
_GLOO_SIZE = re.compile(r"op\.preamble\.length|op\.nbytes")
_OF_A_LIBRARY = re.compile(r"\bNCCL error\b|\bNCCL \w+ failed\b|ncclCommInit|NCCL communicator|gloo[:/]", re.IGNORECASE)
#: A line of nccl2's log that reports a failure of the rank's own GPU (WorkNCCL.cpp, checkStatus).
_OWN_GPU = re.compile(r"CUDA error during (?:start|end) event query: ")
#: gloo aborts a rank in its own transport, whatever its peer did (gloo/common/logging.h).
_GLOO_SPEAKS = re.compile(r"gloo::|gloo/transport")
#: How NCCL's watchdogs announce that they end the rank, and why: nccl2's abortProcess, and the older one's
#: terminate handler and heartbeat monitor (torch 2.15 c10d/nccl2/ProcessGroupNCCL.cpp, ProcessGroupNCCL.cpp).
_WATCHDOG_ENDS = re.compile(
    r"(?:Aborting process on rank \d+ due to|watchdog thread terminated with exception:"
    r"|Terminating the process after attempting to dump debug info, due to) (?P<reason>[^\n]*)"
)
_TIME_OUT = re.compile(r"operation timed out|operation timeout|collective timeout")
#: The older watchdog's exception has NCCL's own last error in the following characters.
_BELOW = 500


def judge(trial: TrialRecord) -> Judgment:
    """Return the cause of a trial that did not finish."""
    ranks = [rank for rank in trial.evidence if not rank.done]
    if trial.outcome == "slow":  # a stopped rank is not slow, even if the others are busy
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
    """Return True if a rank's exception is about a peer. The rank's log may have the cause that the exception omits."""
    return blames_peer(words_of(rank)) and not _OWN_GPU.search(rank.output_tail)


# --- the causes, most certain first --------------------------------------------------------------


def _died(ranks: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    dead = [rank for rank in ranks if rank.exited_at is not None]
    own = [rank for rank in dead if rank.exit_code != _SIGABRT or not _aborted_over_a_peer(rank.output_tail)]
    if not own:
        if not any(_GLOO_SIZE.search(rank.output_tail) for rank in dead):
            return None
        # gloo aborts the rank that *receives* a message of the wrong size, and the recorder of that rank is lost. The
        # cause is a surviving rank whose real call differs from its announced one.
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
    """Return True if a rank's output shows that it aborted because a peer left or never came."""
    if _GLOO_SPEAKS.search(output):
        return True
    ends = list(_WATCHDOG_ENDS.finditer(output))
    return bool(ends) and all(
        (_TIME_OUT.search(end["reason"]) or blames_peer(end["reason"]))
        and not names_own_host(output[end.end() : end.end() + _BELOW])
        for end in ends
    )


def _named(kind: Kind, guilty: Sequence[RankEvidence], ranks: Sequence[RankEvidence]) -> Judgment:
    """Return a judgment that names these ranks as the cause, with the step the other ranks are in."""
    innocent = [rank for rank in ranks if rank not in guilty]
    return Judgment(kind, numbers(guilty), numbers(innocent), shared_step(innocent))


def _first_to_go(dead: Sequence[RankEvidence], trial: TrialRecord) -> list[RankEvidence]:
    """Return the ranks that did not die because of another death, if the times are comparable."""
    nodes = {rank.node for rank in dead}
    known = clocks(by_step(trial), nodes) if len(nodes) > 1 else dict.fromkeys(nodes, Clock(0.0, 0.0))
    # A peer's death may have ended the others. torchrun reports 0 for exit codes it does not know.
    answers = (*_ANSWERS, 0) if trial.launcher == "torchrun" else _ANSWERS
    first = [rank for rank in dead if rank.exit_code not in answers]
    if not known:  # the nodes' deaths have no order, so a death that may be a consequence is not a cause
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
    """Return True if no death of a peer can have ended the rank, however late it ended.

    ddp-doctor does not kill its own ranks before they are judged, and a rank outside of all steps does not wait for any
    peer. A watchdog aborts a rank from a thread without Python frames.
    """
    if rank.exit_code in _OWN_FAULTS:
        return True
    alone = rank.exit_code == -signal.SIGKILL or (
        rank.open_step is None
        and (rank.exit_code not in _ANSWERS or (rank.exit_code == _SIGABRT and bool(fatal_stack(rank.output_tail))))
    )
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
    for cause in (_stopped, _never_began, _behind):  # most exceptions may be about a rank that never came
        found = cause(ranks, trial)
        if found is not None and found.suspects and not {*numbers(most)} & {*found.suspects}:
            return found
    return Judgment("unsure", waiting=numbers(ranks), step=shared_step(ranks))


def _at_odds(ranks: Sequence[RankEvidence], _trial: TrialRecord) -> Judgment | None:
    """Return a judgment if a rank reports that a peer's data do not fit. Either of them may be wrong.

    Another rank may then fail on the data it read. An exception of a rank's own host or code counts more.
    """
    messages = [words_of(rank) for rank in ranks if rank.raised is not None]
    if not any(map(is_unfit, messages)) or not all(map(_follows_from_odds, messages)):
        return None
    left = [rank for rank in ranks if not _ended(rank)]
    return Judgment("at-odds", waiting=numbers(left), step=shared_step(ranks))


def _follows_from_odds(message: str) -> bool:
    """Return True if the exception may result from ranks that disagree: it is NCCL's or gloo's, or blames a peer."""
    is_a_librarys = _OF_A_LIBRARY.search(message) is not None and not names_own_host(message)
    return is_a_librarys or blames_peer(message)


def _stopped(ranks: Sequence[RankEvidence], _trial: TrialRecord) -> Judgment | None:
    return _not_running(ranks, "stopped", "Tt")


def _uninterruptible(ranks: Sequence[RankEvidence], _trial: TrialRecord) -> Judgment | None:
    """Return a judgment on ranks in state D, which may pass. So it is tried only if no rank is missing from a step."""
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
    # A rank that uses the CPU (it imports torch, on a busy machine) may still come.
    missing = [rank for rank in missing if (rank.cpu_s_per_s or 0.0) < STILL_CPU_S_PER_S and not _starves(rank, ranks)]
    if not missing:
        return Judgment("unsure", waiting=numbers(ranks), step=shared_step(ranks))
    return _named("never-began", missing, ranks)


def _mismatch(ranks: Sequence[RankEvidence], _trial: TrialRecord) -> Judgment | None:
    """Compare the calls at one place: first the flight recorder's, which are the real ones, then the announced ones."""
    if (ruling := different_calls(recorded(ranks))) is not None:
        calls = ruling.calls
        return _mismatched(ranks, calls, ruling.suspects or _off_the_plan(ranks, calls, len(calls)))
    if (ruling := different_calls(announced(ranks))) is not None:
        steps = {rank.rank: rank.open_step for rank in ranks if rank.rank in ruling.calls}
        waiting = tuple(rank for rank in steps if rank not in ruling.suspects)
        return Judgment("mismatch", ruling.suspects, waiting, steps[(waiting or tuple(steps))[0]])
    return None


def _off_the_plan(ranks: Sequence[RankEvidence], calls: Mapping[int, Call], compared: int) -> tuple[int, ...]:
    """Return the ranks whose real call differs from the announced one, to decide between equal halves.

    Empty if they are more than half of the compared ranks: then the announcements are wrong.
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
    """Return a judgment on ranks that never entered a step although others wait for them in it."""
    waiting = {rank.rank: step for rank in ranks if (step := rank.open_step) is not None}
    if not waiting:
        return None
    # At one place a transfer comes before a collective: its ranks have not passed anything.
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
    """Return True if the rank got hardly any CPU time on the only node: it may arrive if the node is less busy."""
    granted = rank.cpu_granted
    return granted is not None and granted < STARVED_SHARE and rank.state == "R" and len({r.node for r in ranks}) == 1


def _group_hangs(waiting: Mapping[int, Step], here: Place, trial: TrialRecord) -> Judgment | None:
    """Return a judgment if all ranks of one group of an axis wait in a step that the other groups left."""
    further = any(place_of(step, trial) > here for step in waiting.values())
    there = {rank: step for rank, step in waiting.items() if place_of(step, trial) == here}
    groups = sorted({step.members for step in there.values()})
    if not further or len(groups) != 1 or not groups[0] or {*groups[0]} != there.keys():
        return None
    return Judgment("all-entered", (), groups[0], there[groups[0][0]])


def _left_behind(ranks: Sequence[RankEvidence], trial: TrialRecord, here: Place) -> Judgment | None:
    """Return a judgment on the few ranks still in a step that all others left, while some wait further on.

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
        # With two ranks in a collective, the link is the cause. With more, the pairwise check finds the link. The
        # control store uses another link.
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
    """Return a judgment if many ranks are in init_process_group; the ranks that left it are not missing."""
    step = last[0].open_step
    makes_the_group = step is not None and step.name == INIT and len(last) < len(trial.evidence)
    if not makes_the_group or any(rank.state == "D" for rank in last):
        return None
    return Judgment("left-behind", (), numbers(last), step)


def _ended(rank: RankEvidence) -> bool:
    """Return True if a rank failed or exited: its exception is evaluated, not its place."""
    return rank.raised is not None or rank.exited_at is not None


def _absent_peer(waiting: Sequence[RankEvidence], ranks: Sequence[RankEvidence]) -> Judgment | None:
    """Return a judgment on a rank whose partner waits in a transfer while the rank itself waits for no peer."""
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
    """Count how often a rank entered a transfer with this peer. With equal counts, neither is missing."""
    return sum(peer in step.peers for step in rank.steps)


def _outside(ranks: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    """Return a judgment if ranks are in user code while all others wait in a collective of the same step."""
    step, doing = shared_step(ranks), {rank.rank: where_it_waits(rank) for rank in ranks}
    if step is None or step.name not in STEPS_OF_A_JOB or len(ranks) < len(trial.evidence):
        return None
    absent = tuple(rank for rank, where in doing.items() if where == "outside")
    waiting = tuple(rank for rank, where in doing.items() if where == "collective")
    if not absent or not waiting or len(absent) + len(waiting) < len(ranks):
        return None
    return Judgment("never-entered", absent, waiting, step)


def _deadlock(ranks: Sequence[RankEvidence], trial: TrialRecord) -> Judgment | None:
    """Return a judgment if all ranks entered and none left: a link hangs. A point-to-point step shows which."""
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
