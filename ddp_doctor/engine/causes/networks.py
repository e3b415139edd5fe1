"""What NCCL's choices on all ranks tell together: different networks, or paths over which nothing came."""

from collections import defaultdict
from collections.abc import Iterator

from ddp_doctor.engine.causes.evidence import Output, Suspect
from ddp_doctor.engine.causes.judged import Judged
from ddp_doctor.engine.causes.time_outs import collective_reached, is_first, waited
from ddp_doctor.engine.causes.whose import places, rank_culprit
from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.knowledge.job_causes import cause_named
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.job_waits import waits
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital

#: What shows whether P2P moves data, and the IOMMU and ACS.
_PROOF = "ddp-doctor run --only topology,p2p"


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


def p2p_hang(recording: Recording, output: Output) -> tuple[Judged, ...]:
    """All ranks wait in one of the first collectives, and NCCL had connected their GPUs by P2P alone."""
    cause, number = cause_named("iommu-p2p-hang"), collective_reached(output)
    logs = [at.fact for at in recording.facts(NcclTransportFact)]
    paths = [path for log in logs for path in log.transports]
    if cause is None or not is_first(number) or {path.kind for path in paths} != {"P2P"}:
        return ()
    those = [wait for of_group in waits(output.fact).values() for wait in of_group.values()]
    came = [wait for wait in those if (wait.seq or wait.enqueued or 0) >= number]
    apart = len({wait.seq for wait in those} - {None}) > 1 or len(came) < len(those)
    if apart or not set(output.ranks) <= {wait.rank for wait in came}:
        return ()
    over = name_list(sorted({"/".join(path.via.split("/")[:2]) for path in paths}))
    rings = (
        "all rings are connected"
        if any("all rings" in log.connected for log in logs)
        else "GPUs are connected"
    )
    hosts = name_list(sorted({log.host for log in logs if log.host})) or "the node"
    title = (
        f"Data between the GPUs of {hosts} may not arrive over {over}: collective {number} hung, and {rings}"
    )
    detail = (
        f"{capital(waited(output))} NCCL says that {rings}, over {over}. An IOMMU that translates addresses, or ACS on"
        " PCIe bridges, may keep such transfers from arriving: what is set up, and whether P2P moves data,"
        f" `{_PROOF}` tells on the same GPUs."
    )
    shown = tuple(sign.where for wait in came for sign in wait.signs[:1])
    named = cause._replace(title=title)
    next_check = f"{_PROOF} on the same GPUs; NCCL_P2P_DISABLE=1 with the same job"
    return (Judged(named, Confidence.POSSIBLE, shown, (), hosts, detail, next_check=next_check),)
