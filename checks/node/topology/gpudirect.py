"""DD437: a NIC near a GPU that does not reach its memory by itself."""

import re
from collections.abc import Iterator

from ddp_doctor.checks.node.topology import transport_wording as words
from ddp_doctor.facts.kernel import KernelFact
from ddp_doctor.facts.topology import TopologyFact
from ddp_doctor.knowledge import link_codes as codes
from ddp_doctor.knowledge.nccl_paths import GDR_LEVEL, WITHOUT_GPUDIRECT
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.nodes import host, in_words
from ddp_doctor.views.links_between_nodes import Crossing, crossings, hca_of, nodes_that_say
from ddp_doctor.views.reproducers import between
from ddp_doctor.views.transports import Place, log_of, places

_STAGED = re.compile(r"\[receive\] via NET/IB/\d{1,3}(?:\(\d{1,7}\))?(?:/Shared)?\s*$", re.MULTILINE)
#: A NIC and its GPU, for a sentence.
_Way = tuple[str, str, str]


@rule("DD437", "gpudirect-rdma-not-used", Severity.WARNING, TopologyFact)
def not_used(recording: Recording) -> Iterator[Draft]:
    """A NIC is near a GPU, and NCCL receives through host memory all the same.

    What it finds
        A connection between nodes that NCCL's log shows as NET/IB without GDRDMA at its receiving end, over a
        NIC within PXB of the GPU, which is NCCL's own limit. Silent for GeForce and TITAN, which have no
        GPUDirect RDMA, and where the kernel cannot do it (DD339).

    Why it matters
        The data crosses host memory twice: between nodes often half the bandwidth, and the CPU's memory is
        loaded with it.

    Remedy
        A setting that forbids it: unset it. Else have NCCL say why; it tests each GPU and each NIC.

    References
        NCCL src/graph/paths.cc, ncclTopoCheckGdr; src/transport/net_ib/gdr.cc
        NCCL user guide, environment variable NCCL_NET_GDRGDR_LEVEL
    """
    known = {place.seen.node: place for place in places(recording)}
    kernels = {seen.node: seen.fact for seen in recording.facts(KernelFact)}
    groups: dict[tuple[str, Remedy], list[tuple[Crossing, _Way]]] = {}
    for node in nodes_that_say(recording, _STAGED):
        place, kernel = known.get(node), kernels.get(node)
        if place is None or (kernel is not None and kernel.gpudirect_rdma()[0] is False):
            continue
        for one in crossings(recording, node):
            way = _near(recording, place, one)
            if way is not None:
                groups.setdefault(_reason(recording, place, way), []).append((one, way))
    for (reason, remedy), group in groups.items():
        nodes = list(dict.fromkeys(one.node for one, _ in group))
        ways = list(dict.fromkeys(way for _, way in group))
        pairs = in_words([f"{nic} for {gpu}" for gpu, nic, _ in ways])
        yield Draft(
            title=f"NICs near GPUs do not reach their memory (no GPUDirect RDMA) on"
            f" {in_words([host(recording, node) for node in nodes])}: {pairs}",
            detail=f"NCCL goes through host memory there. {reason}.",
            confidence=Confidence.POSSIBLE if remedy is words.SHOW_NETWORK else Confidence.LIKELY,
            culprits=tuple(_culprit(recording, one, nic) for one, (_, nic, _) in group),
            evidence=tuple(
                Evidence(
                    text=f"{gpu} and {nic} are {code}; NCCL's log: rank {one.ranks[0]} receives from rank"
                    f" {one.ranks[1]} via {one.transport.via}"
                )
                for one, (gpu, nic, code) in group[: words.MOST_PAIRS]
            ),
            remedies=(remedy,),
            reproduced_by=between(recording, group[0][0].ranks) if remedy is not words.SHOW_NETWORK else None,
        )


def _near(recording: Recording, place: Place, one: Crossing) -> _Way | None:
    """GPU, NIC and code of a connection that NCCL should receive by GPUDirect RDMA and does not."""
    network = one.transport.network
    name = hca_of(log_of(recording, place.seen.node), one.transport)
    if one.transport.end != "receive" or network is None or network[2] or name is None or one.gpu is None:
        return None
    gpu, nics = f"GPU{one.gpu}", [nic for nic, device in place.fact.nics.items() if device == name]
    model = place.gpus[gpu].name if gpu in place.gpus else None
    if len(nics) != 1 or gpu not in place.fact.gpus or model is None:
        return None
    code = place.fact.links[gpu][nics[0]]
    able = not any(word in model for word in WITHOUT_GPUDIRECT) and gpu not in place.fact.mig_gpus
    return (gpu, name, code) if able and codes.allowed(code, codes.DEFAULT_P2P_LIMIT) else None


def _reason(recording: Recording, place: Place, way: _Way) -> tuple[str, Remedy]:
    level, (_, nic, code) = place.node.settings.get(GDR_LEVEL), way
    limit = codes.p2p_level(level) if level else None
    if level and limit and not codes.allowed(code, limit):
        return f"{GDR_LEVEL}={level} forbids it", words.unset_setting(
            GDR_LEVEL, level, "NCCL then uses GPUDirect RDMA"
        )
    if nic in log_of(recording, place.seen.node).no_gpu_direct:
        return "NCCL's log says that it found no module for GPUDirect RDMA", words.LOAD_PEERMEM
    return "Nothing that is recorded explains it", words.SHOW_NETWORK


def _culprit(recording: Recording, one: Crossing, nic: str) -> Culprit:
    return Culprit(
        kind="nic",
        node=host(recording, one.node),
        node_rank=one.node,
        rank=one.ranks[0],
        gpu=one.gpu,
        name=nic,
    )


RULES = (not_used,)
