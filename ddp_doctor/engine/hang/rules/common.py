"""What the rules over trials share: the judged trials, and how they speak of ranks and steps."""

import re
import signal
from collections.abc import Collection, Iterator

from ddp_doctor.engine.hang.judge import judge, tells_of_a_peer
from ddp_doctor.engine.hang.judgement import INIT, Judgement, Kind
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit, Evidence, Remedy
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.trial import RankEvidence, Step, TrialRecord
from ddp_doctor.parse.complaints import used_elsewhere, with_last_warning
from ddp_doctor.parse.frames import YOURS
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.remedies.nccl import DISABLE_P2P
from ddp_doctor.views.failed_trials import stalls
from ddp_doctor.views.open_files import out_of_files, says_too_many
from ddp_doctor.views.reproducers import is_across
from ddp_doctor.views.settings_read import has_a_refused_value
from ddp_doctor.views.silence_causes import silent_nodes
from ddp_doctor.views.software import nodes_without_backends
from ddp_doctor.wording.nodes import host
from ddp_doctor.wording.ranks import capital, rank_culprit, rank_list, ranks_at, short

#: What a setting that torch refuses can look like: never a rank that is stopped, killed or missing.
_REFUSED_LOOKS: tuple[Kind, ...] = ("all-entered", "raised-everywhere", "unsure")
#: What ranks that raised look like, and those that the trial's end then kept from coming.
_RAISED_LOOKS: tuple[Kind, ...] = ("raised", "raised-everywhere", "unsure", "never-entered", "never-began")
#: torch 2.15 distributed_c10d.py, _new_process_group_helper.
_UNKNOWN_BACKEND = "Unknown c10d backend type"

#: The step of probing/user_model in which ranks compare how a phase of the user's code went.
OUTCOMES = "compare_outcomes"
#: More lines of evidence of one kind than these help no reader; the culprits name every rank.
MOST_LINES = 8


def pairs_of_topology(recording: Recording) -> set[tuple[int, int]]:
    """The pairs of ranks that the topology's own rule names: one cause, one finding."""
    return {stall.ranks for stall in stalls(recording)}


def holds_one_of(trial: TrialRecord, pairs: set[tuple[int, int]]) -> bool:
    """Whether both ends of one of these pairs took part, so that its link may explain the trial."""
    return any(set(pair) <= set(trial.ranks) for pair in pairs)


def judged(recording: Recording, *kinds: Kind) -> Iterator[tuple[TrialRecord, Judgement]]:
    """The trials that did not finish and whose judgement is one of these kinds.

    A trial that failed as a whole while the process group was set up is left out where a setting
    that torch refuses explains it, and any trial that a silent node explains: the ranks of the others
    only wait for that node's, and nothing is known of these. The same goes for one whose exceptions have a finding of
    their own: an operation on another GPU than the group's, a torch that finds no backend.
    """
    for trial, judgement in _judged(recording):
        if judgement.kind in kinds:
            yield trial, judgement


@once_a_recording
def _judged(recording: Recording) -> list[tuple[TrialRecord, Judgement]]:
    refused = has_a_refused_value(recording)
    unfinished = (trial for trial in recording.trials if trial.outcome in ("stuck", "broken", "slow"))
    found = [(trial, judge(trial)) for trial in unfinished if not lacks_a_node(recording, trial)]
    return [
        (trial, judgement)
        for trial, judgement in found
        if not _ran_out_of_files(recording, trial, judgement)
        and not (refused and trial.judged_check == "process_group" and _may_be_refused(trial, judgement))
        and not (judgement.kind in _RAISED_LOOKS and _has_its_own_finding(recording, trial))
    ]


def _has_its_own_finding(recording: Recording, trial: TrialRecord) -> bool:
    raised = [rank for rank in trial.evidence if rank.raised is not None and not tells_of_a_peer(rank)]
    if any(used_elsewhere(words_of(rank)) for rank in raised):
        return True
    # A backend that torch does not know, on a node where, as another finding says, it finds none at all.
    without = nodes_without_backends(recording)
    return bool(raised) and all(_UNKNOWN_BACKEND in words_of(rank) and rank.node in without for rank in raised)


def _ran_out_of_files(recording: Recording, trial: TrialRecord, judgement: Judgement) -> bool:
    """Whether those to blame say that they ran out of files, on a node whose low limit another finding names."""
    low = out_of_files(recording)
    to_blame = [rank for rank in trial.evidence if rank.rank in judgement.suspects or rank.raised is not None]
    return bool(low and to_blame) and all(rank.node in low and says_too_many(rank) for rank in to_blame)


def lacks_a_node(recording: Recording, trial: TrialRecord) -> bool:
    """Whether a node fell silent during this trial, or handed in nothing of its ranks and then was lost."""
    heard = {rank.node for rank in trial.evidence}
    world = recording.world
    silent = silent_nodes(recording) if world is not None and world.nnodes > 1 else frozenset()
    return bool(trial.lost_nodes) or any(
        world is not None and set(world.ranks_of(node)) & set(trial.ranks) for node in silent - heard
    )


def _may_be_refused(trial: TrialRecord, judgement: Judgement) -> bool:
    aborted = judgement.kind == "died" and all(
        of_rank(trial, rank).exit_code == -signal.SIGABRT for rank in judgement.suspects
    )
    return aborted or judgement.kind in _REFUSED_LOOKS


def of_rank(trial: TrialRecord, rank: int) -> RankEvidence:
    """The evidence of one rank."""
    return next(evidence for evidence in trial.evidence if evidence.rank == rank)


def check_of(trial: TrialRecord, judgement: Judgement) -> str:
    """The check in which the trial was judged."""
    return judgement.step.check if judgement.step else trial.judged_check or trial.checks[0]


def step_words(step: Step | None) -> str:
    """``all_reduce 17``, as the evidence counts the steps of a check; a group is made once."""
    if step is None:
        return "its next step"
    if step.name == OUTCOMES:
        return f"the comparison after {step.detail}"
    return step.name if step.name == INIT else f"{step.name} {step.seq}"


def in_your_code(step: Step | None) -> str:
    """``your make_batch``: the user's code that ends in this step, where the ranks tell each other how it went."""
    if step is None or step.name != OUTCOMES:
        return ""
    return YOURS.get(re.split(r"[( ]", step.detail)[0], "")


def words_of(rank: RankEvidence) -> str:
    """What the rank's exception says, with NCCL's last warning where torch left it out."""
    return with_last_warning(rank.raised.message, rank.output_tail) if rank.raised else ""


def who_waits(judgement: Judgement) -> str:
    """``; ranks 0, 2 wait``, or nothing where nobody does."""
    if not judgement.waiting:
        return ""
    verb = "wait" if len(judgement.waiting) > 1 else "waits"
    return f"; {rank_list(judgement.waiting)} {verb}"


def culprits(recording: Recording, numbers: tuple[int, ...]) -> tuple[Culprit, ...]:
    """The ranks as culprits."""
    return tuple(rank_culprit(recording, rank) for rank in numbers)


def names(recording: Recording, numbers: tuple[int, ...]) -> str:
    """The ranks at the beginning of a sentence, each with its host where there are several."""
    return capital(ranks_at(recording, numbers))


#: Frames that wait on behalf of somebody: torch, the standard library, the doctor's own worker.
_LIBRARY = re.compile(r"/torch/|/ddp_doctor/ranks/|/lib/python3[^/]*/(?!site-packages|dist-packages)|^<")


def stands(rank: RankEvidence) -> str:
    """Where the rank is, as far as the process could still report."""
    if rank.stack:
        return f"it {'stands' if rank.exited_at is None else 'stood'} in {_frame(rank)}"
    if rank.steps:
        last = rank.steps[-1]
        return f"its last step was {step_words(last)} at {short(last.where)}"
    return "it never said where it stands"


def _frame(rank: RankEvidence) -> str:
    """The innermost frame that is no library's."""
    own = [frame for frame in rank.stack if not _LIBRARY.search(frame)]
    return short((own or list(rank.stack))[-1])


def place(rank: RankEvidence) -> str | None:
    """``train.py:19`` of the frame in which the rank is, or of the last step that it took."""
    if rank.stack:
        return _frame(rank).partition(" in ")[0]
    return short(rank.steps[-1].where) if rank.steps else None


def rank_evidence(recording: Recording, trial: TrialRecord, judgement: Judgement, rank: RankEvidence) -> Evidence:
    """One rank's process state, position and processor time."""
    world = recording.world
    place = f"{world.hostname(rank.node)}, " if world is not None and world.nnodes > 1 else ""
    parts = [f"rank {rank.rank} ({place}pid {rank.pid}): {process_words(rank)}", stands(rank)]
    if rank.cpu_s_per_s is not None and rank.exited_at is None:
        parts.append(f"{rank.cpu_s_per_s:.0%} of a core in the last second")
    return Evidence(check=check_of(trial, judgement), text="; ".join(parts))


def process_words(rank: RankEvidence) -> str:
    """What the kernel says of the rank's process."""
    if rank.exited_at is not None:
        return f"gone {rank.exited_at:.1f} s after the start"
    states = {"R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped", "t": "traced", "Z": "dead"}
    wait = f" in {rank.wait_channel}" if rank.wait_channel and rank.wait_channel != "0" else ""
    return f"process {states.get(rank.state or '', 'state unknown')}{wait}"


def waiting_evidence(trial: TrialRecord, judgement: Judgement) -> tuple[Evidence, ...]:
    """Where the innocent ranks stand, and for how long."""
    if not judgement.waiting or judgement.step is None:
        return ()
    step = judgement.step
    where = short(step.where)
    text = f"{rank_list(judgement.waiting)} entered {step_words(step)} at {where} and did not leave it"
    waited_s = round(trial.waited_s, 1) or None  # a rank that is gone is judged at once
    return (Evidence(check=step.check, text=text, value=waited_s, unit="s" if waited_s else None),)


def evidence(recording: Recording, trial: TrialRecord, judgement: Judgement) -> tuple[Evidence, ...]:
    """The suspects first, then those who wait for them."""
    shown, left = judgement.suspects[:MOST_LINES], judgement.suspects[MOST_LINES:]
    guilty = [rank_evidence(recording, trial, judgement, of_rank(trial, rank)) for rank in shown]
    if left:
        guilty.append(Evidence(check=check_of(trial, judgement), text=f"alike: {rank_list(left)}"))
    return (*guilty, *waiting_evidence(trial, judgement))


def all_well_without(recording: Recording, trial: TrialRecord, judgement: Judgement) -> bool:
    """Whether a later trial ran the same check to its end without the suspects: a second proof."""
    later = recording.trials[recording.trials.index(trial) + 1 :]
    check = trial.judged_check or check_of(trial, judgement)
    return any(
        again.outcome == "finished" and check in again.checks and not set(again.ranks) & set(judgement.suspects)
        for again in later
    )


def confidence(recording: Recording, trial: TrialRecord, judgement: Judgement) -> Confidence:
    """Proved where the same checks passed without the suspects."""
    proved = all_well_without(recording, trial, judgement)
    return Confidence.PROVED if proved else Confidence.LIKELY


def proof_words(recording: Recording, trial: TrialRecord, judgement: Judgement) -> str:
    """The sentence that says so."""
    if all_well_without(recording, trial, judgement):
        return " The same checks passed in a second trial without it."
    return ""


def link_remedies(
    recording: Recording, pairs: Collection[tuple[int, int]] = (), step: Step | None = None
) -> tuple[Remedy, ...]:
    """What to try where links hang: between these pairs, or, where none could be named, between any.

    Peer-to-peer transfers are NCCL's between the GPUs of one node; between nodes there is the network, and
    in init_process_group between all ranks: they connect over sockets first, on one node too.
    """
    world = recording.world
    several = world is not None and world.nnodes > 1
    across = several and (not pairs or any(is_across(recording, pair) for pair in pairs))
    within = not pairs or any(not is_across(recording, pair) for pair in pairs)
    on_gpus = world is not None and world.backend == "nccl"
    found = [_WITHOUT_P2P] if on_gpus and within else []
    if connects(step):
        return (_network_remedy(recording, pairs), *found)
    return (*found, _network_remedy(recording, pairs)) if across or not on_gpus else tuple(found)


def connects(step: Step | None) -> bool:
    """Whether it is the step in which the ranks connect to each other."""
    return step is not None and step.name == INIT


def _network_remedy(recording: Recording, pairs: Collection[tuple[int, int]]) -> Remedy:
    world = recording.world
    nodes = {(world.node_of(source), world.node_of(target)) for source, target in pairs} if world else set()
    paths = sorted((source, target) for source, target in nodes if source != target)
    traces = (f"tracepath {host(recording, target)}   # on {host(recording, source)}" for source, target in paths[:2])
    return remedy(
        "Look at what connects them: firewall rules, the interface, the name each resolves to, the largest"
        " packet that passes",
        "ss -tnp",
        "sudo nft list ruleset",
        *traces,
    )


_WITHOUT_P2P = DISABLE_P2P.model_copy(
    update={"summary": "Turn GPU peer-to-peer off to prove the cause; then repair ACS, the IOMMU or the link"}
)
