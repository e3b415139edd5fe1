"""What the choices of all ranks tell together, and no line of one rank: nodes that chose different networks."""

from collections import defaultdict
from collections.abc import Iterator

from ddp_doctor.engine.causes.evidence import Output, Suspect
from ddp_doctor.engine.causes.judged import Judged
from ddp_doctor.engine.causes.whose import places, rank_culprit
from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.knowledge.job_causes import cause_named
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.recording import Recording


def suspects(recording: Recording, output: Output) -> Iterator[Suspect]:
    """Ranks whose NCCL uses another network than most; nobody is to blame where both have as many."""
    cause = cause_named("net-transport-mismatch")
    ranks_by_network: dict[str, list[int]] = defaultdict(list)
    for at in recording.facts(NcclTransportFact):
        if at.fact.network is not None and at.rank is not None:
            ranks_by_network[at.fact.network].append(at.rank)
    if cause is None or len(ranks_by_network) < 2:
        return
    usual, *others = sorted(ranks_by_network, key=lambda network: -len(ranks_by_network[network]))
    fewer = sorted(rank for network in others for rank in ranks_by_network[network])
    known = sum(map(len, ranks_by_network.values()))
    judged = Judged(
        cause,
        Confidence.LIKELY,
        tuple(
            last for rank in fewer if rank in output.ranks and (last := output.ranks[rank].last) is not None
        ),
        tuple(rank_culprit(output, rank) for rank in fewer) if 2 * len(fewer) < known else (),
        places(output, fewer),
        detail=f"NCCL uses {' and '.join(others)} on {places(output, fewer)}, and {usual} on the others.",
    )
    yield Suspect(cause, "nccl", Confidence.LIKELY, judged=judged)
