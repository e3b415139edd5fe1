"""What is to be said of NCCL_IB_GID_INDEX beside an RDMA device, where its table of addresses was read."""

from collections.abc import Collection

from ddp_doctor.knowledge.network import roce_gids
from ddp_doctor.knowledge.versions import dotted
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.links_between_nodes import rdma_of
from ddp_doctor.views.transports import places


def gid_index_in_words(recording: Recording, node: int, devices: Collection[str]) -> str | None:
    """Whether the index has to be set for these devices; None where that cannot be told.

    NCCL's own choice is told only where its release is known, since that decides, and where it is an
    entry that other nodes reach; else the rules about RDMA (DD567 to DD569) have more to say.
    """
    rdma = rdma_of(recording).get(node)
    nccl = next((place.node.version for place in places(recording) if place.seen.node == node), ())
    ports = [port for hca, port in rdma.candidates() if hca.name in devices] if rdma else []
    if rdma is None or not ports:
        return None
    if not any(port.is_roce for port in ports):
        return "It is InfiniBand, which needs no NCCL_IB_GID_INDEX"
    if not nccl:
        return None
    unset = {name: value for name, value in rdma.settings.items() if name != roce_gids.INDEX}
    gids = [roce_gids.nccl_choice(port.gids, nccl, unset).gid for port in ports if port.is_roce]
    if not all(gid is not None and gid.is_routable for gid in gids):
        return None
    entries = ", ".join(dict.fromkeys(f"{gid.index} ({gid.address}, RoCE v2)" for gid in gids if gid))
    return f"Leave NCCL_IB_GID_INDEX unset: NCCL {dotted(nccl)} takes entry {entries} by itself"
