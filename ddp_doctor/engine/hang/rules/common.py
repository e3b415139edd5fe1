"""Shared code of the rules over trials: the judged trials, and the texts about them, their ranks and steps."""

import re
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ddp_doctor.engine.hang.judge import judge, tells_of_a_peer
from ddp_doctor.engine.hang.judgment import Judgment, Kind
from ddp_doctor.model.check import PROCESS_GROUP
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit, Evidence, Remedy
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.trial import INIT, RankEvidence, Step, TrialRecord
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.remedies.nccl import DISABLE_P2P
from ddp_doctor.views.failed_trials import used_elsewhere, words_of
from ddp_doctor.views.open_files import out_of_files, says_too_many
from ddp_doctor.views.reproducers import is_across
from ddp_doctor.views.settings_read import has_a_refused_value
from ddp_doctor.views.silence_causes import silent_nodes
from ddp_doctor.views.software import nodes_without_backends
from ddp_doctor.wording.nodes import host
from ddp_doctor.wording.ranks import capital, rank_culprit, rank_list, ranks_at, short

#: Judgments that a setting refused by torch can cause: never a stopped, killed or missing rank.
_REFUSED_LOOKS: tuple[Kind, ...] = ("all-entered", "raised-everywhere", "unsure")
#: Judgments on trials whose ranks raised, and on ranks that then did not come because the trial ended.
_RAISED_LOOKS: tuple[Kind, ...] = ("raised", "raised-everywhere", "unsure", "never-entered", "never-began")
#: torch 2.15 distributed_c10d.py, _new_process_group_helper.
_UNKNOWN_BACKEND = "Unknown c10d backend type"

#: The step of features/model/user_model in which ranks compare the results of a phase of the user's code.
OUTCOMES = "compare_outcomes"
#: Maximum number of evidence lines of one kind; the culprits list every rank.
MOST_LINES = 8


@dataclass(frozen=True)
class Case:
    """A trial that did not finish, with its judgment and the texts of findings about it."""

    recording: Recording
    trial: TrialRecord
    judgment: Judgment

    @property
    def check(self) -> str:
        """The check that the trial failed in."""
        return self.judgment.step.check if self.judgment.step else self.trial.judged_check or self.trial.checks[0]

    @property
    def first(self) -> RankEvidence:
        """The first rank at fault."""
        return self.of_rank(self.judgment.suspects[0])

    def of_rank(self, number: int) -> RankEvidence:
        """Return the evidence of a rank."""
        return next(rank for rank in self.trial.evidence if rank.rank == number)

    @property
    def step_words(self) -> str:
        """The step that ranks wait in, such as ``all_reduce #17``, with the ranks of its group on a mesh axis."""
        step = self.judgment.step
        of_group = f" ({rank_list(step.members)})" if step is not None and step.members else ""
        return f"{step_words(step)}{of_group}"

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The ranks at fault, as culprits."""
        return culprits(self.recording, self.judgment.suspects)

    @property
    def names(self) -> str:
        """The ranks at fault, as the beginning of a sentence."""
        return names(self.recording, self.judgment.suspects)

    @property
    def who_waits(self) -> str:
        """``Ranks 0, 2 wait for it in check allreduce. ``; empty if no rank waits."""
        waiting, it = self.judgment.waiting, "it" if len(self.judgment.suspects) == 1 else "them"
        wait = f"{capital(rank_list(waiting))} {'wait' if len(waiting) > 1 else 'waits'}"
        return f"{wait} for {it} in check {self.check}. " if waiting else ""

    def rank_evidence(self, rank: RankEvidence) -> Evidence:
        """Return one rank's process state, position and CPU time."""
        place = f"{host(self.recording, rank.node)}, " if self.recording.several_nodes else ""
        parts = [f"rank {rank.rank} ({place}pid {rank.pid}): {process_words(rank)}", stands(rank)]
        if rank.cpu_s_per_s is not None and rank.exited_at is None:
            granted = f" ({rank.cpu_granted:.0%} of the CPU time it requested)" if rank.cpu_granted is not None else ""
            parts.append(f"{rank.cpu_s_per_s:.0%} of a core in the last second{granted}")
        return Evidence(check=self.check, text=", ".join(parts))

    @property
    def waiting_evidence(self) -> tuple[Evidence, ...]:
        """The position of the waiting ranks and how long they have waited."""
        waiting, step = self.judgment.waiting, self.judgment.step
        if not waiting or step is None:
            return ()
        text = f"{rank_list(waiting)} waiting in {step_words(step)} at {short(step.where)}"
        waited_s = round(self.trial.waited_s, 1) or None  # a rank that is gone is judged at once
        return (Evidence(check=step.check, text=text, value=waited_s, unit="s" if waited_s else None),)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The ranks at fault first, then the waiting ranks."""
        shown, left = self.judgment.suspects[:MOST_LINES], self.judgment.suspects[MOST_LINES:]
        guilty = [self.rank_evidence(self.of_rank(rank)) for rank in shown]
        if left:
            guilty.append(Evidence(check=self.check, text=f"similar: {rank_list(left)}"))
        return (*guilty, *self.waiting_evidence)

    @property
    def all_well_without(self) -> bool:
        """True if a later trial finished the same check without the ranks at fault: a second proof."""
        later = self.recording.trials[self.recording.trials.index(self.trial) + 1 :]
        check = self.trial.judged_check or self.check
        return any(
            again.outcome == "finished" and check in again.checks and not set(again.ranks) & set(self.judgment.suspects)
            for again in later
        )

    @property
    def confidence(self) -> Confidence:
        """The confidence: proved if the same checks passed without the ranks at fault."""
        return Confidence.PROVED if self.all_well_without else Confidence.LIKELY

    @property
    def proof_words(self) -> str:
        """The sentence about the second proof; empty without one."""
        return " The same checks passed in a second trial without it." if self.all_well_without else ""


def cases(recording: Recording, *kinds: Kind) -> Iterator[Case]:
    """Yield the trials that did not finish and whose judgment is one of these kinds.

    Trials are skipped if a more specific finding explains them: a setting that torch refuses, if all ranks failed while
    the process group was set up; a silent node, because the other nodes' ranks only wait for its ranks; an operation on
    another GPU than the group's; a torch that finds no backend.
    """
    return (case for case in _cases(recording) if case.judgment.kind in kinds)


@once_a_recording
def _cases(recording: Recording) -> list[Case]:
    refused = has_a_refused_value(recording)
    unfinished = (trial for trial in recording.trials if trial.outcome in ("stuck", "broken", "slow"))
    found = [Case(recording, trial, judge(trial)) for trial in unfinished if not lacks_a_node(recording, trial)]
    return [
        case
        for case in found
        if not _ran_out_of_files(case)
        and not (refused and case.trial.judged_check == PROCESS_GROUP and _may_be_refused(case))
        and not (case.judgment.kind in _RAISED_LOOKS and _has_its_own_finding(recording, case.trial))
    ]


def _has_its_own_finding(recording: Recording, trial: TrialRecord) -> bool:
    raised = [rank for rank in trial.evidence if rank.raised is not None and not tells_of_a_peer(rank)]
    if any(used_elsewhere(words_of(rank)) for rank in raised):
        return True
    # torch does not know the backend, and another finding reports that torch finds no backends on this node.
    without = nodes_without_backends(recording)
    return bool(raised) and all(_UNKNOWN_BACKEND in words_of(rank) and rank.node in without for rank in raised)


def _ran_out_of_files(case: Case) -> bool:
    """Return True if the ranks at fault ran out of open files, on nodes whose low limit another finding reports."""
    low = out_of_files(case.recording)
    suspects = case.judgment.suspects
    to_blame = [rank for rank in case.trial.evidence if rank.rank in suspects or rank.raised is not None]
    return bool(low and to_blame) and all(rank.node in low and says_too_many(rank) for rank in to_blame)


def lacks_a_node(recording: Recording, trial: TrialRecord) -> bool:
    """Return True if a node stopped responding during this trial, or was lost without any evidence of its ranks."""
    heard = {rank.node for rank in trial.evidence}
    world = recording.world
    silent = silent_nodes(recording) if world is not None and world.nnodes > 1 else frozenset()
    return bool(trial.lost_nodes) or any(
        world is not None and set(world.ranks_of(node)) & set(trial.ranks) for node in silent - heard
    )


def _may_be_refused(case: Case) -> bool:
    codes = {case.of_rank(rank).exit_code for rank in case.judgment.suspects}
    aborted = case.judgment.kind == "died" and codes <= {-signal.SIGABRT}
    return aborted or case.judgment.kind in _REFUSED_LOOKS


def step_words(step: Step | None) -> str:
    """Return the name of a step, such as ``all_reduce #17``, numbered as in the check; a group is created only once."""
    if step is None:
        return "its next step"
    if step.name == OUTCOMES:
        return f"the comparison after {step.detail}"
    of_axis = f" of axis {step.axis}" if step.axis else ""
    return step.name if step.name == INIT else f"{step.name} #{step.seq}{of_axis}"


def culprits(recording: Recording, numbers: tuple[int, ...]) -> tuple[Culprit, ...]:
    """Return the ranks as culprits."""
    return tuple(rank_culprit(recording, rank) for rank in numbers)


def names(recording: Recording, numbers: tuple[int, ...]) -> str:
    """Return the ranks as the beginning of a sentence, each with its host if there are several."""
    return capital(ranks_at(recording, numbers))


#: Frames of libraries that wait in the name of other code: torch, the standard library, ddp-doctor's own worker.
_LIBRARY = re.compile(r"/torch/|/ddp_doctor/ranks/|/lib/python3[^/]*/(?!site-packages|dist-packages)|^<")


def stands(rank: RankEvidence) -> str:
    """Return where the rank is, such as ``at train.py:41 in never_enters()``, from the last report of its process."""
    if rank.stack:
        return f"at {_frame(rank)}"
    if rank.steps:
        last = rank.steps[-1]
        return f"last step {step_words(last)} at {short(last.where)}"
    return "position unknown"


def _frame(rank: RankEvidence) -> str:
    """Return the innermost frame outside of libraries."""
    own = [frame for frame in rank.stack if not _LIBRARY.search(frame)]
    frame = short((own or list(rank.stack))[-1])
    return f"{frame}()" if re.search(r" in \w+$", frame) else frame


def place(rank: RankEvidence) -> str | None:
    """Return the line of the rank's current frame or last step, such as ``train.py:19``."""
    if rank.stack:
        return _frame(rank).partition(" in ")[0]
    return short(rank.steps[-1].where) if rank.steps else None


def process_words(rank: RankEvidence) -> str:
    """Return the kernel's state of the rank's process."""
    if rank.exited_at is not None:
        return f"exited {rank.exited_at:.1f} s after the start"
    states = {"R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped", "t": "traced", "Z": "dead"}
    wait = f" in {rank.wait_channel}" if rank.wait_channel and rank.wait_channel != "0" else ""
    return f"process is {states.get(rank.state or '', 'in an unknown state')}{wait}"


def link_remedies(
    recording: Recording, pairs: Collection[tuple[int, int]] = (), step: Step | None = None
) -> tuple[Remedy, ...]:
    """Return the fixes for hanging links: between these pairs, or, without pairs, between any ranks.

    NCCL's peer-to-peer transfers are between the GPUs of one node. Between nodes there is the network. In
    init_process_group all ranks use the network, because they connect over sockets first, even on one node.
    """
    are_across = [is_across(recording, pair) for pair in pairs]
    across = recording.several_nodes and (not pairs or any(are_across))
    within = not pairs or not all(are_across)
    found = [_WITHOUT_P2P] if recording.on_nccl and within else []
    if connects(step):
        return (_network_remedy(recording, pairs), *found)
    return (*found, _network_remedy(recording, pairs)) if across or not recording.on_nccl else tuple(found)


def connects(step: Step | None) -> bool:
    """Return True if the ranks connect to each other in this step."""
    return step is not None and step.name == INIT


def _network_remedy(recording: Recording, pairs: Collection[tuple[int, int]]) -> Remedy:
    world = recording.world
    nodes = {(world.node_of(source), world.node_of(target)) for source, target in pairs} if world else set()
    paths = sorted((source, target) for source, target in nodes if source != target)
    traces = (f"tracepath {host(recording, target)}   # on {host(recording, source)}" for source, target in paths[:2])
    return remedy(
        "Check the path between them: firewall rules, interface, name resolution, largest packet that passes",
        "ss -tnp",
        "sudo nft list ruleset",
        *traces,
    )


_WITHOUT_P2P = DISABLE_P2P.model_copy(
    update={"summary": "Disable GPU peer-to-peer to prove the cause, then repair ACS, the IOMMU or the link"}
)
