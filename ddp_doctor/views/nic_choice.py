"""Which NIC NCCL should use for each GPU of a node, and whether it reaches the GPU's memory by itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ddp_doctor.facts.node.kernel import KernelFact
from ddp_doctor.knowledge.topology import link_rates, nccl_paths
from ddp_doctor.knowledge.topology.link_codes import DEFAULT_P2P_LIMIT, allowed, link_code, nvlinks
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.links_between_nodes import rdma_of
from ddp_doctor.views.transports import Place

_NOT_ASKED = (None, "whether module or dma-buf are there is not known")


@dataclass(frozen=True)
class ToNetwork:
    """One GPU and the NICs nearest to it, by the names of their devices.

    Where they are far and another GPU, joined by NVLink, has one near, NCCL goes by way of that GPU (PXN,
    src/graph/nccl_paths.cc, since 2.12): then ``code`` is "PXN", and NICs and rate are the other GPU's.
    """

    gpu: str
    nics: tuple[str, ...]
    code: str
    gpudirect: bool | None
    why: str
    rate_gb_per_s: float | None  # of one of these NICs


def to_network(recording: Recording, place: Place) -> Iterator[ToNetwork]:
    """Each GPU with a NIC of known name that NCCL may use; a port that is down is passed over where it is known."""
    fact, rdma = place.fact, rdma_of(recording).get(place.seen.node)
    ports = {hca.name: port for hca, port in rdma.chosen()} if rdma and rdma.unused_by is None else {}
    kernels = recording.at(KernelFact, place.seen.node)
    kernel = kernels[0].gpudirect_rdma() if kernels else _NOT_ASKED
    nearest = {}
    for gpu in fact.gpus:
        known = {name: fact.links[gpu][nic] for nic, name in fact.hcas().items()}
        near = {name: code for name, code in known.items() if rdma is None or name in ports}
        if near:
            code = min(near.values(), key=lambda code: link_code(code).distance)
            nics = tuple(name for name, code_of_nic in near.items() if code_of_nic == code)
            model = place.gpus[gpu].name if gpu in place.gpus else None
            speed = ports[nics[0]].rate_gbit_per_s if nics[0] in ports else None
            rate = link_rates.slowest((place.slot(gpu), speed / 8 if speed else None))
            able, why = nccl_paths.gpudirect(place.node, code, model, kernel=kernel)
            nearest[gpu] = ToNetwork(gpu, nics, code, able, why, rate)
    for gpu, own in nearest.items():
        yield _by_another(place, own, [nic for nic in nearest.values() if nic.gpu != gpu]) or own


def _by_another(place: Place, own: ToNetwork, others: Sequence[ToNetwork]) -> ToNetwork | None:
    """The way over NVLink and another GPU's NIC, where the own NICs are beyond a host bridge."""
    if allowed(own.code, DEFAULT_P2P_LIMIT) or place.node.is_on("NCCL_PXN_DISABLE"):
        return None
    links = place.fact.links[own.gpu]
    near = (nic for nic in others if allowed(nic.code, DEFAULT_P2P_LIMIT) and nvlinks(links[nic.gpu]))
    way = next(near, None)
    return (
        replace(way, gpu=own.gpu, code="PXN", why=f"over NVLink to a GPU with a NIC; {way.why}")
        if way
        else None
    )
