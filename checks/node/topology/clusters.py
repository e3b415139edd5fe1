"""What kind of cluster each node belongs to, from what host and RDMA checks recorded, and what follows for a remedy."""

from collections.abc import Sequence

from ddp_doctor.facts.node.host import Host
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.knowledge.topology.cluster_kinds import Cluster, Kind, Maker, cluster_of
from ddp_doctor.model.finding import Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.kinds import remedy
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


#: Who ships a topology file of NCCL for its machines, and where.
_TOPOLOGY_FILES: dict[Kind, tuple[str, str]] = {
    "AWS with EFA": (
        "AWS ships one for p4d and later kinds with aws-ofi-nccl, which points NCCL at it by itself",
        "find /opt/amazon/ofi-nccl /opt/aws-ofi-nccl -name '*topo*.xml'",
    ),
    "Azure with InfiniBand": (
        "Azure ships one for each ND kind with its HPC images",
        "ls /opt/microsoft/*topo*.xml",
    ),
}
_ANY = (
    "ask the provider; AWS ships such files with aws-ofi-nccl, Azure with its HPC images",
    "find /opt /etc /usr/share -name '*topo*.xml'",
)


def topology_file(clusters: Sequence[Cluster]) -> Remedy:
    """NCCL's topology file for this kind of machine, from whoever ships it."""
    kinds = {one.kind for one in clusters}
    who, command = _TOPOLOGY_FILES.get(kinds.pop(), _ANY) if len(kinds) == 1 else _ANY
    return remedy(
        f"Point NCCL_TOPO_FILE at NCCL's topology file of this kind of machine: {who}",
        command,
        scope="job",
        cost="a file of another kind of machine misleads NCCL",
        undo="unset NCCL_TOPO_FILE",
        untried="the file is the provider's",
        references=("https://github.com/NVIDIA/nccl/issues/1298",),
    )
