"""The network of the nodes: interfaces, the NICs that NCCL should use and does use, and its links between nodes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.facts.node.kernel import KernelFact
from ddp_doctor.facts.node.nccl_log import NcclTransportFact, Transport
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.knowledge.network.interface_choice import Choice, gloo_choice, nccl_choice
from ddp_doctor.knowledge.network.interface_faults import Offer, is_fine
from ddp_doctor.knowledge.network.path_quality import FAST_ETHERNET_MBPS
from ddp_doctor.knowledge.severity import of_detour
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.knowledge.topology.link_codes import DEFAULT_P2P_LIMIT, NCCL_PATHS, allowed, nvlinks
from ddp_doctor.knowledge.topology.nccl_paths import GDR_LEVEL, WITHOUT_GPUDIRECT
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.views.transports import (
    Place,
    ToNetwork,
    first_trial,
    log_of,
    numbers_of_gpus,
    places,
    texts,
    ways_to_nics,
)


def chosen(fact: InterfacesFact, backend: str) -> Choice:
    """Return the backend's choice on this node: the library's own answer if it was queried."""
    return fact.gloo if backend == "gloo" else fact.libnccl or fact.nccl


def interface_mbps(recording: Recording, node: int) -> int | None:
    """Return the speed of the interface that NCCL uses for TCP, or None if unknown."""
    speeds = (
        interface.speed_mbps
        for fact in recording.at(InterfacesFact, node)
        for interface in fact.interfaces
        if interface.name == chosen(fact, "nccl").interface
    )
    return next(speeds, None)


def severity_of_tcp(recording: Recording, node: int) -> Severity:
    """Return the severity of TCP instead of RDMA, by the fastest port and by what one TCP connection can carry."""
    ports = (port for fact in recording.at(RdmaFact, node) for _, port in fact.ports() if port.is_active)
    fastest_gbit = max((port.rate_gbit_per_s or 0.0 for port in ports), default=0.0)
    tcp_mbps = min(interface_mbps(recording, node) or FAST_ETHERNET_MBPS, FAST_ETHERNET_MBPS)
    return of_detour(fastest_gbit, tcp_mbps / 1000)


def advertised(fact: InterfacesFact, backend: str) -> str | None:
    """Return the address that the backend gives to the other nodes, or None if it finds none or it is unknown."""
    choice = chosen(fact, backend)
    return None if choice.error else choice.address


def offer_of(node: FactAt[InterfacesFact], backend: str) -> Offer:
    """Return the node as this backend presents it to the others."""
    fact, choice = node.fact, chosen(node.fact, backend)
    without = {name: value for name, value in fact.settings.items() if name != choice.setting}
    default = (
        gloo_choice(fact.interfaces, without, fact.hostname_addresses)
        if backend == "gloo"
        else nccl_choice(fact.interfaces, without)
    )
    held = " ".join(address for interface in fact.interfaces for address in interface.addresses)
    return Offer(
        node=node.node,
        choice=choice,
        interfaces=fact.interfaces,
        own_addresses=fact.hostname_addresses,
        backend=backend,
        setting=fact.settings.get(choice.setting or ""),
        default_does=is_fine(default, fact.interfaces),
        host=f"{fact.host_id or fact.hostname} {held}",
    )


@dataclass(frozen=True)
class Crossing:
    """A connection between a rank of ``node`` and a rank of another node, from the first rank's log."""

    node: int
    other: int
    ranks: tuple[int, int]  # original, of ``node`` first
    transport: Transport
    gpu: int | None  # NVML's index of the GPU of the rank of ``node``


def crossings(recording: Recording, node: int) -> Iterator[Crossing]:
    """Yield the connections of one node with others, in the order of the log."""
    trial, log = first_trial(recording), log_of(recording, node)
    world = recording.world
    if trial is None or world is None or not set(log.comm_sizes) <= {len(trial.ranks)}:
        return
    gpus = numbers_of_gpus(recording, trial, log, node)
    for transport in log.transports:
        if transport.kind != "NET" or max(transport.from_rank, transport.to_rank) >= len(trial.ranks):
            continue
        sender, receiver = trial.ranks[transport.from_rank], trial.ranks[transport.to_rank]
        own_rank, peer = (receiver, sender) if transport.end == "receive" else (sender, receiver)
        if world.node_of(own_rank) == node != world.node_of(peer):
            yield Crossing(node, world.node_of(peer), (own_rank, peer), transport, gpus.get(own_rank))


def nodes_whose_log_has(recording: Recording, pattern: re.Pattern[str]) -> list[int]:
    """Return the nodes whose log contains the pattern, without parsing the logs of thousands of nodes."""
    return [node for node, text in texts(recording).items() if pattern.search(text)]


@once_a_recording
def rdma_of(recording: Recording) -> Mapping[int, RdmaFact]:
    """Return the RDMA fact of each node."""
    return {rdma.node: rdma.fact for rdma in recording.facts(RdmaFact)}


def hca_of(log: NcclTransportFact, transport: Transport) -> str | None:
    """Return the RDMA device of a connection, or None if the log does not show which device its number means."""
    network = transport.network
    names = {hca.name for hca in log.hcas if network and network[0] == "IB" and hca.index == network[1]}
    return names.pop() if len(names) == 1 else None


def to_network(recording: Recording, place: Place) -> Iterator[ToNetwork]:
    """Yield each GPU with a NIC of known name that NCCL may use; ports known to be down are skipped."""
    ways = ways_to_nics(recording, place)
    for gpu, own in ways.items():
        linked = [ways[other] for other in ways if nvlinks(place.fact.links[gpu].get(other, ""))]
        found = [_way_by_another_gpu(place, own[nic], [its[nic] for its in linked if nic in its]) for nic in own]
        # NCCL uses the fastest NIC, or the nearest if a rate is unknown.
        rates = [way.rate_gb_per_s or 0.0 for way in found]
        fast = [way for way in found if not all(rates) or way.rate_gb_per_s == max(rates)]
        near = min(NCCL_PATHS.index(way.nccl_path) for way in fast)
        same = [way for way in fast if NCCL_PATHS.index(way.nccl_path) == near]
        yield replace(same[0], nics=tuple(way.nics[0] for way in same))


def _way_by_another_gpu(place: Place, own: ToNetwork, others: Sequence[ToNetwork]) -> ToNetwork:
    """Return the path over NVLink and another GPU to the NIC if the GPU's own path crosses the CPU."""
    if allowed(own.nccl_path, DEFAULT_P2P_LIMIT) or place.node.is_on("NCCL_PXN_DISABLE"):
        return own
    way = next((way for way in others if allowed(way.nccl_path, DEFAULT_P2P_LIMIT)), None)
    if way is None:
        return own
    return replace(way, gpu=own.gpu, code="PXN", why=f"over NVLink to a GPU with a NIC; {way.why}")


_STAGED = re.compile(r"\[receive\] via NET/IB/\d{1,3}(?:\(\d{1,7}\))?(?:/Shared)?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Staged:
    """A connection that NCCL should receive by GPUDirect RDMA but does not."""

    place: Place
    crossing: Crossing
    gpu: str
    nic: str
    code: str

    @property
    def forbidding_level(self) -> str | None:
        """NCCL_NET_GDR_LEVEL, if it disables GPUDirect RDMA for this connection."""
        level = self.place.node.settings.get(GDR_LEVEL)
        limit = link_codes.p2p_level(level) if level else None
        return level if limit and not allowed(self.code, limit) else None


@once_a_recording
def staged(recording: Recording) -> list[Staged]:
    """Return the connections of all nodes whose kernel can do GPUDirect RDMA."""
    connections = list[Staged]()
    known = {place.seen.node: place for place in places(recording)}
    kernels = {node.node: node.fact for node in recording.facts(KernelFact)}
    for node in nodes_whose_log_has(recording, _STAGED):
        place, kernel = known.get(node), kernels.get(node)
        if place is None or (kernel is not None and kernel.gpudirect_rdma()[0] is False):
            continue
        found = (_staged_connection(recording, place, crossing) for crossing in crossings(recording, node))
        connections += filter(None, found)
    return connections


def _staged_connection(recording: Recording, place: Place, crossing: Crossing) -> Staged | None:
    """Return the connection with its GPU and NIC if NCCL should receive it by GPUDirect RDMA, or None."""
    network = crossing.transport.network
    name = hca_of(log_of(recording, place.seen.node), crossing.transport)
    if crossing.transport.end != "receive" or network is None or network[2]:
        return None
    if name is None or crossing.gpu is None:
        return None
    gpu, nics = f"GPU{crossing.gpu}", [nic for nic, device in place.fact.nics.items() if device == name]
    model = place.gpus[gpu].name if gpu in place.gpus else None
    if len(nics) != 1 or nics[0] not in place.fact.links.get(gpu, {}) or model is None:
        return None
    code = place.fact.links[gpu][nics[0]]
    able = not any(word in model for word in WITHOUT_GPUDIRECT) and gpu not in place.fact.mig_gpus
    return Staged(place, crossing, gpu, name, code) if able and allowed(code, DEFAULT_P2P_LIMIT) else None
