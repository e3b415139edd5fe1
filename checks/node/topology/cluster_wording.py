"""How findings speak of the kind of cluster that a node belongs to, and what follows for a remedy."""

from collections.abc import Sequence

from ddp_doctor.knowledge.topology.cluster_kinds import Cluster, Kind
from ddp_doctor.model.finding import Remedy
from ddp_doctor.remedies.kinds import remedy

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
