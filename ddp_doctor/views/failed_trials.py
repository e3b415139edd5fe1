"""NCCL's messages before a trial failed, and the pairs of ranks that are stuck in its P2P.

A P2P stall does not print a message. Its signs: both ranks entered the same step, neither left it, both processes run
normally, and the log in their output has ``0[0] -> 1[1] via P2P/CUMEM``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddp_doctor.facts.node.nccl_log import NcclTransportFact, Transport
from ddp_doctor.facts.node.topology import TopologyFact, TopologyMatrix
from ddp_doctor.features import CannotLoad, recorded
from ddp_doctor.knowledge.topology.link_codes import nvlinks
from ddp_doctor.knowledge.victims import is_unfit
from ddp_doctor.model.base import grouped
from ddp_doctor.model.known_error import KnownError
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.trial import RankEvidence, Step, TrialRecord
from ddp_doctor.parse.nccl_log import parse_nccl_log

#: torch's watchdog aborts a rank whose communicator failed.
_ABORTED = -6
#: The prefix of a line with a warning of NCCL, or of a line of torch that repeats the warning.
_BEFORE_WORDS = re.compile(r"(?:^.*(?:NCCL WARN |[lL]ast [eE]rror: ?)|\[rank\d{1,7}\]: )(?:NET/IB ?: )?")
_WARNING = re.compile(r"NCCL WARN ([^\n]{1,300})")
#: Maximum length of a line to keep.
_MOST = 300


@dataclass(frozen=True)
class RankComplaint:
    """A message of one rank's NCCL that a rule reports; ``cause`` is the cause of its sign, "" without one."""

    trial: TrialRecord
    rank: int
    node: int
    run_code: str
    cause: str
    text: str


def rank_complaints(recording: Recording, run_code: str) -> list[RankComplaint]:
    """Return the messages that this rule reports, from the ranks of failed trials."""
    return [complaint for complaint in _all_complaints(recording) if complaint.run_code == run_code]


@once_a_recording
def _all_complaints(recording: Recording) -> list[RankComplaint]:
    found: list[RankComplaint] = []
    for trial in recording.trials:
        if trial.backend == "nccl" and trial.outcome in ("broken", "stuck"):
            alone = not trial.lost_nodes and all(map(_runs, trial.evidence))
            for rank in trial.evidence:
                words = f"{rank.output_tail}\n{rank.raised.message}" if rank.raised else rank.output_tail
                found += [
                    RankComplaint(trial, rank.rank, rank.node, run_code, cause, text)
                    for run_code, cause, text in complaints(words)
                    if alone or run_code != "DD584"  # a peer that is gone does not answer
                ]
    return found


def _runs(rank: RankEvidence) -> bool:
    return rank.began and rank.exit_code in (None, 0, _ABORTED) and (rank.state or "R") in "RS"


def complaints(text: str) -> list[tuple[str, str, str]]:
    """Return the rule code, the cause and the text of each sign of a ``run`` rule: one per code and cause."""
    found: dict[tuple[str, str], str] = {}
    for error in _known_errors():
        key = (error.run_code, error.cause)
        if error.run_code and key not in found and any(word in text for word in error.words):
            lines = (line for line in text.splitlines() if any(word in line for word in error.words))
            if line := next((line for line in lines if re.search(error.pattern, line)), ""):
                found[key] = _BEFORE_WORDS.sub("", line).strip()[:_MOST]
    return [(*key, words) for key, words in found.items()]


def _known_errors() -> Sequence[KnownError]:
    """Return the texts of errors; empty if the feature that knows them cannot be loaded."""
    try:
        return recorded("logs").errors()
    except CannotLoad:
        return ()


def explains(recording: Recording, trial: TrialRecord) -> bool:
    """Return True if a more specific rule reports why this trial failed."""
    return any(complaint.trial is trial for complaint in _all_complaints(recording))


def words_of(rank: RankEvidence) -> str:
    """Return a rank's exception, with NCCL's last warning if the exception is NCCL's and lacks it; "" without one."""
    message = rank.raised.message if rank.raised else ""
    if "nccl" not in message.lower() or "last error:" in message.lower():
        return message
    warnings = _WARNING.findall(rank.output_tail)
    return f"{message}\nLast error:\n{warnings[-1].strip()}" if warnings else message


class UsedElsewhere(NamedTuple):
    """The GPU of a process group, and another GPU that an operation used."""

    bound: str
    used: str


def used_elsewhere(message: str) -> UsedElsewhere | None:
    """Return both GPUs if the message reports such an operation, or None."""
    patterns = (error.pattern for error in _known_errors() if error.id == "bound-elsewhere")
    match = next((re.search(pattern, message) for pattern in patterns), None)
    return UsedElsewhere(*match.groups()) if match else None


@once_a_recording
def what_did_not_fit(recording: Recording) -> list[tuple[TrialRecord, RankEvidence]]:
    """Return the ranks whose exception reports that a peer's data do not fit, with their trials."""
    return [
        (trial, rank)
        for trial in recording.trials
        if trial.outcome in ("broken", "stuck")
        for rank in trial.evidence
        if is_unfit(words_of(rank))
    ]


def all_complained(recording: Recording, nodes: Iterable[int], run_code: str) -> bool:
    """Return True if NCCL reported it on each of these nodes, so a limit needs no finding."""
    return set(nodes) <= {complaint.node for complaint in rank_complaints(recording, run_code)}


def nodes_of(group: Sequence[RankComplaint]) -> list[int]:
    """Return the nodes of these messages."""
    return sorted({complaint.node for complaint in group})


#: The first step of each check that moves data between GPUs. The first all-reduce of a run belongs to process_group; a
#: rank in init_process_group has not moved any data.
_STEPS = {"process_group": "all_reduce", "allreduce": "all_reduce", "p2p": "send_recv"}


@dataclass(frozen=True)
class Stall:
    """Two ranks of one node, their GPUs, and the path between them."""

    trial: TrialRecord
    node: int
    ranks: tuple[int, int]
    gpus: tuple[str, str]
    code: str
    via: str
    log: NcclTransportFact

    @property
    def isolated(self) -> bool:
        """True if only this pair was tested, as in the p2p check, and not as part of a ring."""
        return self.trial.judged_check == "p2p"


@once_a_recording
def stalls(recording: Recording) -> list[Stall]:
    """Return the pairs that are stuck in P2P, as DD401 reports them."""
    return find_stalls({node.node: node.fact for node in recording.facts(TopologyFact)}, recording.trials)


def find_stalls(matrices: Mapping[int, TopologyMatrix], trials: Sequence[TrialRecord]) -> list[Stall]:
    """Return the pairs that are stuck in P2P, on nodes with a matrix: only isolated pairs if there are any."""
    found = [
        stall
        for trial in trials
        if trial.backend == "nccl" and trial.outcome == "stuck"
        for node, ranks in _by_node(trial).items()
        if node in matrices
        for stall in _stalls_on(matrices[node], node, trial, ranks)
    ]
    passed = [set(trial.ranks) for trial in _ended(trials) if "p2p" in trial.checks]
    isolated = [stall for stall in found if stall.isolated]
    return isolated or [stall for stall in found if not any(set(stall.ranks) <= ranks for ranks in passed)]


def nodes_nccl_ran_on(trials: Sequence[TrialRecord]) -> set[int]:
    """Return the nodes where NCCL moved data between ranks of the node, in a trial that ended."""
    tried = (trial for trial in _ended(trials) if {"allreduce", "p2p"} & set(trial.checks))
    return {node for trial in tried for node, ranks in _by_node(trial).items() if len(ranks) > 1}


def logs_by_node(trials: Sequence[TrialRecord]) -> dict[int, NcclTransportFact]:
    """Return NCCL's transports on each node, from the logs of all trials."""
    texts = grouped((rank.node, rank.output_tail) for trial in trials for rank in trial.evidence)
    return {node: parse_nccl_log("\n".join(tails)) for node, tails in texts.items()}


def _ended(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    return [trial for trial in trials if trial.backend == "nccl" and trial.outcome == "finished"]


def _by_node(trial: TrialRecord) -> dict[int, list[RankEvidence]]:
    return grouped((rank.node, rank) for rank in trial.evidence)


def _stalls_on(matrix: TopologyMatrix, node: int, trial: TrialRecord, here: Sequence[RankEvidence]) -> Iterator[Stall]:
    check = trial.judged_check
    if check is None or check not in _STEPS:
        return
    steps = {rank.rank: step for rank in here if (step := _open_step(rank, check))}
    # A rank that died, stopped or never entered would explain the others, and so would the network if some ranks are on
    # other nodes.
    all_wait = all(rank.done or rank.rank in steps for rank in trial.evidence)
    # torch's flight recorder may show different calls; a mismatch hangs just as silently.
    calls = {(entry.seq, entry.op, entry.sizes, entry.dtypes) for rank in trial.evidence for entry in rank.flight}
    calls_differ = len(calls) > len({seq for seq, *_ in calls})
    if check != "p2p" and (calls_differ or not all_wait):
        return
    log = parse_nccl_log("\n".join(rank.output_tail for rank in here))
    for ranks, transport in _by_pair(log, trial.ranks).items():
        gpus = _gpus_of(transport, matrix)
        code = matrix.links[gpus[0]].get(gpus[1], "") if gpus is not None else ""
        if gpus is not None and _meet(ranks, steps) and nvlinks(code) == 0:
            yield Stall(trial, node, ranks, gpus, code, transport.via, log)


def _open_step(rank: RankEvidence, check: str) -> Step | None:
    """Return the step of this check that a running process entered and has not left."""
    last = rank.open_step
    runs = rank.began and rank.exit_code is None and rank.raised is None and (rank.state or "R") in "RS"
    stands = last is not None and (last.check, last.name) == (check, _STEPS[check])
    return last if runs and stands else None


def _by_pair(log: NcclTransportFact, ranks: Sequence[int]) -> dict[tuple[int, int], Transport]:
    """Return one P2P transport for each pair of original ranks, the lower rank first.

    NCCL numbers the ranks of its communicator: number i is ``ranks[i]`` if a trial excluded some ranks.
    """
    pairs: dict[tuple[int, int], Transport] = {}
    for transport in log.transports:
        ends = (transport.from_rank, transport.to_rank)
        if transport.via.startswith("P2P/") and max(ends) < len(ranks):
            low, high = sorted(ranks[end] for end in ends)
            pairs.setdefault((low, high), transport)
    return pairs


def _meet(ranks: tuple[int, int], steps: Mapping[int, Step]) -> bool:
    """Return True if both are in the same step, each waiting for the other."""
    if not set(ranks) <= set(steps):
        return False
    first, second = (steps[rank] for rank in ranks)
    # A step with peers belongs to one pair; its ends may have done different numbers of rounds.
    facing = ranks[1] in first.peers and ranks[0] in second.peers
    together = not first.peers and not second.peers and first.seq == second.seq
    return (facing or together) and (first.name, first.detail) == (second.name, second.detail)


def _gpus_of(transport: Transport, matrix: TopologyMatrix) -> tuple[str, str] | None:
    """Return the columns of both GPUs: by NVML index, or the only two columns."""
    ends = (transport.from_gpu, transport.to_gpu)
    if None in ends:
        return (matrix.gpus[0], matrix.gpus[1]) if len(matrix.gpus) == 2 else None
    first, second = (f"GPU{number}" for number in sorted(end for end in ends if end is not None))
    return (first, second) if first != second and {first, second} <= set(matrix.gpus) else None
