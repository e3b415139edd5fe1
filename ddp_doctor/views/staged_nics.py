"""The NICs near a GPU from which NCCL receives through host memory, by its log: no GPUDirect RDMA."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.facts.node.kernel import KernelFact
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.knowledge.topology.nccl_paths import GDR_LEVEL, WITHOUT_GPUDIRECT
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.links_between_nodes import Crossing, crossings, hca_of, nodes_that_say
from ddp_doctor.views.transports import Place, log_of, places

_STAGED = re.compile(r"\[receive\] via NET/IB/\d{1,3}(?:\(\d{1,7}\))?(?:/Shared)?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Staged:
    """One connection that NCCL should receive by GPUDirect RDMA and does not."""

    place: Place
    crossing: Crossing
    gpu: str
    nic: str
    code: str

    @property
    def forbidding_level(self) -> str | None:
        """NCCL_NET_GDR_LEVEL, where that is what forbids it."""
        level = self.place.node.settings.get(GDR_LEVEL)
        limit = link_codes.p2p_level(level) if level else None
        return level if limit and not link_codes.allowed(self.code, limit) else None


def staged(recording: Recording) -> list[Staged]:
    """The connections of all nodes whose kernel can do GPUDirect RDMA."""
    return recording.once("connections without GPUDirect RDMA", lambda: list(_staged(recording)))


def _staged(recording: Recording) -> Iterator[Staged]:
    known = {place.seen.node: place for place in places(recording)}
    kernels = {node.node: node.fact for node in recording.facts(KernelFact)}
    for node in nodes_that_say(recording, _STAGED):
        place, kernel = known.get(node), kernels.get(node)
        if place is None or (kernel is not None and kernel.gpudirect_rdma()[0] is False):
            continue
        for crossing in crossings(recording, node):
            found = _near(recording, place, crossing)
            if found is not None:
                yield found


def _near(recording: Recording, place: Place, crossing: Crossing) -> Staged | None:
    """The connection with its GPU and NIC, where NCCL should receive it by GPUDirect RDMA."""
    network = crossing.transport.network
    name = hca_of(log_of(recording, place.seen.node), crossing.transport)
    if crossing.transport.end != "receive" or network is None or network[2]:
        return None
    if name is None or crossing.gpu is None:
        return None
    gpu, nics = f"GPU{crossing.gpu}", [nic for nic, device in place.fact.nics.items() if device == name]
    model = place.gpus[gpu].name if gpu in place.gpus else None
    if len(nics) != 1 or gpu not in place.fact.gpus or model is None:
        return None
    code = place.fact.links[gpu][nics[0]]
    able = not any(word in model for word in WITHOUT_GPUDIRECT) and gpu not in place.fact.mig_gpus
    return (
        Staged(place, crossing, gpu, name, code)
        if able and link_codes.allowed(code, link_codes.DEFAULT_P2P_LIMIT)
        else None
    )
