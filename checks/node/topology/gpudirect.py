"""DD437: a NIC near a GPU that does not reach its memory by itself."""

from collections.abc import Iterator

from ddp_doctor.checks.node.topology import transport_wording as words
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.topology.nccl_paths import GDR_LEVEL
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.links_between_nodes import Crossing
from ddp_doctor.views.reproducers import between
from ddp_doctor.views.staged_nics import Staged, staged
from ddp_doctor.views.transports import log_of
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import host, in_words


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
    groups: dict[tuple[str, Remedy], list[Staged]] = {}
    for found in staged(recording):
        groups.setdefault(_reason(recording, found), []).append(found)
    for (reason, remedy), group in groups.items():
        nodes = list(dict.fromkeys(found.crossing.node for found in group))
        pairs = in_words(list(dict.fromkeys(f"{found.nic} for {found.gpu}" for found in group)))
        yield finding(
            (_culprit(recording, found.crossing, found.nic) for found in group),
            f"NICs near GPUs do not reach their memory (no GPUDirect RDMA) on"
            f" {in_words([host(recording, node) for node in nodes])}: {pairs}",
            map(_evidence, group[: words.MOST_PAIRS]),
            remedy,
            confidence=Confidence.POSSIBLE if remedy is words.SHOW_NETWORK else Confidence.LIKELY,
            detail=f"NCCL goes through host memory there. {reason}.",
            reproduced_by=between(recording, group[0].crossing.ranks)
            if remedy is not words.SHOW_NETWORK
            else None,
        )


def _evidence(found: Staged) -> Evidence:
    one, other = found.crossing.ranks
    return Evidence(
        text=f"{found.gpu} and {found.nic} are {found.code}; NCCL's log: rank {one} receives from rank {other} via"
        f" {found.crossing.transport.via}",
    )


def _reason(recording: Recording, found: Staged) -> tuple[str, Remedy]:
    level = found.forbidding_level
    if level is not None:
        return f"{GDR_LEVEL}={level} forbids it", words.unset_setting(
            GDR_LEVEL, level, "NCCL then uses GPUDirect RDMA"
        )
    if found.nic in log_of(recording, found.crossing.node).no_gpu_direct:
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
