"""What kind of cluster each node belongs to, from what host and RDMA checks recorded."""

from ddp_doctor.facts.node.host import Host
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.knowledge.topology.cluster_kinds import Cluster, Maker, cluster_of
from ddp_doctor.model.finding import Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.links_between_nodes import rdma_of


def cluster(recording: Recording, node: int) -> Cluster:
    """The kind of one node, unknown where nothing was recorded that tells."""
    return recording.once(("cluster", node), lambda: _cluster(recording, node))


def _cluster(recording: Recording, node: int) -> Cluster:
    host = next(iter(recording.at(Host, node)), None)
    rdma = rdma_of(recording).get(node)
    maker = (
        Maker(host.vendor, host.product, host.asset_tag, host.network_drivers)
        if host is not None
        else Maker()
    )
    has_efa = rdma is not None and any(hca.is_efa for hca in rdma.hcas)
    return cluster_of(maker, _layers(rdma), has_efa=has_efa)


def _layers(rdma: RdmaFact | None) -> set[str]:
    """The link layers of the active ports; software devices and Azure's accelerated Ethernet are no fabric."""
    ports = rdma.ports() if rdma is not None else ()
    return {
        port.link_layer
        for hca, port in ports
        if port.is_active and port.link_layer and hca.bus_id is not None
    }


def evidence(recording: Recording, node: int) -> tuple[Evidence, ...]:
    """One line that says so, where it is known."""
    found = cluster(recording, node)
    return () if found.kind == "unknown" else (Evidence(check="host", text=f"this is {found.in_words}"),)
