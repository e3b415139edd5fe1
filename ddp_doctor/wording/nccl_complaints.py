"""Texts about NCCL's complaints before a trial failed."""

from collections.abc import Iterator, Sequence

from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Draft, Evidence, Remedy, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.failed_trials import RankComplaint, nodes_of
from ddp_doctor.wording.findings import Who, finding
from ddp_doctor.wording.nodes import host, hosts, node_culprit
from ddp_doctor.wording.ranks import rank_list

#: Maximum number of different complaints in the evidence.
_MOST_LINES = 4


def complained(
    recording: Recording,
    group: Sequence[RankComplaint],
    title: str,
    detail: str,
    *remedies: Remedy,
    confidence: Confidence = Confidence.PROVED,
) -> Iterator[Draft]:
    """Yield a finding about the nodes whose ranks complained, if there are any. Its title contains ``{who}``."""
    nodes = nodes_of(group)
    if group:
        trial = group[0].trial
        here = tuple(rank.rank for rank in trial.evidence if rank.node == nodes[0] or len(nodes) > 1)
        meet = Reproducer(kind="meet", ranks=here if len(here) > 1 else trial.ranks)
        yield finding(
            Who(tuple(node_culprit(recording, node) for node in nodes), hosts(recording, nodes)),
            title,
            complaint_lines(recording, group),
            *remedies,
            confidence=confidence,
            detail=detail,
            reproduced_by=meet if any(remedy.settings for remedy in remedies) else None,
        )


def complaint_lines(recording: Recording, group: Sequence[RankComplaint]) -> tuple[Evidence, ...]:
    """Return NCCL's messages, and the ranks and nodes that printed them."""
    alike = grouped(((complaint.node, complaint.text), complaint.rank) for complaint in group)
    several = recording.several_nodes
    check = group[0].trial.judged_check or "process_group"
    return tuple(
        Evidence(
            check=check, text=f"NCCL on {rank_list(ranks)}{f' of {host(recording, node)}' if several else ''}: {text}"
        )
        for (node, text), ranks in list(alike.items())[:_MOST_LINES]
    )
