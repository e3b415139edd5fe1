"""What NCCL complained of before a trial failed: on which ranks and nodes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.model.finding import Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.parse.complaints import Complaint, Kind, complaints

#: torch's watchdog aborts a rank whose communicator failed.
_ABORTED = -6


@dataclass(frozen=True)
class Said:
    """One rank's words."""

    trial: TrialRecord
    rank: int
    node: int
    complaint: Complaint


def said(recording: Recording, *kinds: Kind) -> list[Said]:
    """What the ranks of trials that failed said of these causes."""
    return [
        one
        for one in recording.once("NCCL's complaints", lambda: list(_said(recording)))
        if one.complaint.kind in kinds
    ]


def _said(recording: Recording) -> Iterator[Said]:
    for trial in recording.trials:
        if trial.backend == "nccl" and trial.outcome in ("broken", "stuck"):
            alone = not trial.lost_nodes and all(map(_runs, trial.evidence))
            for rank in trial.evidence:
                for complaint in complaints(_words(rank)):
                    if alone or complaint.kind != "rdma-timeout":  # a peer that is gone answers nobody
                        yield Said(trial, rank.rank, rank.node, complaint)


def _words(one: RankEvidence) -> str:
    return f"{one.output_tail}\n{one.raised.message}" if one.raised else one.output_tail


def _runs(one: RankEvidence) -> bool:
    return one.began and one.exit_code in (None, 0, _ABORTED) and (one.state or "R") in "RS"


def explains(recording: Recording, trial: TrialRecord) -> bool:
    """Whether a rule of its own tells why this trial failed."""
    return any(
        one.trial is trial for one in recording.once("NCCL's complaints", lambda: list(_said(recording)))
    )


def all_said(recording: Recording, nodes: Iterable[int], kind: Kind) -> bool:
    """Whether each of these nodes had it from NCCL itself, so that a limit needs no finding of its own."""
    return set(nodes) <= {one.node for one in said(recording, kind)}


def nodes_of(group: Sequence[Said]) -> list[int]:
    """The nodes whose ranks said it."""
    return sorted({one.node for one in group})


def again(group: Sequence[Said], node: int | None = None) -> Reproducer:
    """The test that failed: the ranks of the trial, or those of one node, meet."""
    trial = group[0].trial
    here = tuple(rank.rank for rank in trial.evidence if node is None or rank.node == node)
    return Reproducer(kind="meet", ranks=here if len(here) > 1 else trial.ranks)
