"""How a finding shows what NCCL complained of."""

from collections.abc import Sequence

from ddp_doctor.model.base import grouped
from ddp_doctor.model.finding import Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.failed_trials import RankComplaint
from ddp_doctor.wording.nodes import host
from ddp_doctor.wording.ranks import rank_list

#: Of more wordings than this the evidence shows the first.
_MOST_LINES = 4


def complaint_lines(recording: Recording, group: Sequence[RankComplaint]) -> tuple[Evidence, ...]:
    """NCCL's words, and which ranks of which nodes printed them."""
    alike = grouped(((complaint.node, complaint.complaint.text), complaint.rank) for complaint in group)
    several = recording.world is not None and recording.world.nnodes > 1
    check = group[0].trial.judged_check or "process_group"
    return tuple(
        Evidence(
            check=check, text=f"NCCL on {rank_list(ranks)}{f' of {host(recording, node)}' if several else ''}: {text}"
        )
        for (node, text), ranks in list(alike.items())[:_MOST_LINES]
    )
