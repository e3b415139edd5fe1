"""The kind of cluster that a node belongs to, by its own facts: a cloud's network, InfiniBand, RoCE or Ethernet.

    sys_vendor         Amazon EC2 · Google · Microsoft Corporation · Supermicro
    product_name       p5.48xlarge · Google Compute Engine · Virtual Machine
    chassis_asset_tag  7783-7084-3265-9085-8269-3286-77, which Azure gives every machine, and no other Hyper-V
    network drivers    ena · gve · mana, hv_netvsc · mlx5_core, bnxt_en, ice

There is no default: without a cloud's vendor name the links decide, and if they show nothing, the kind is unknown.
Sources: systemd src/basic/virt.c (vendors of virtual machines), cloud-init DataSourceAzure.py (the tag) and
DataSourceGCE.py (the product); the kernel's drivers/net/ethernet/{amazon/ena,google/gve,microsoft/mana}; the pages of
AWS on EFA, of Google Cloud on GPU networking and of Azure on the ND series: A3 High and Mega have no RDMA, A3 Ultra and
A4 have RoCE.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "AWS with EFA",
    "AWS without EFA",
    "Google Cloud with RoCE",
    "Google Cloud without RDMA",
    "Azure with InfiniBand",
    "Azure without InfiniBand",
    "InfiniBand",
    "RoCE",
    "Ethernet",
    "unknown",
]

AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
_AWS, _GOOGLE = "Amazon EC2", "Google"
#: Drivers of Ethernet interfaces, physical and virtual; wireless ones carry no cluster.
_ETHERNET = frozenset(
    (
        *("ena", "gve", "mana", "hv_netvsc", "virtio_net", "vmxnet3"),
        *("mlx5_core", "mlx4_en", "bnxt_en", "bnx2x", "ice", "i40e", "ixgbe", "igb", "igc", "e1000e"),
        *("r8169", "tg3", "qede", "cxgb4", "ionic", "atlantic"),
    )
)


_Fabric = Literal["InfiniBand", "RoCE"]
_PORTS: dict[_Fabric, str] = {"InfiniBand": "active InfiniBand ports", "RoCE": "active RDMA ports on Ethernet"}
#: The kind of each cloud with and without its fabric, and that fabric.
_CLOUDS: dict[str, tuple[Kind | None, Kind, _Fabric | None]] = {
    "AWS": (None, "AWS without EFA", None),
    "Google Cloud": ("Google Cloud with RoCE", "Google Cloud without RDMA", "RoCE"),
    "Azure": ("Azure with InfiniBand", "Azure without InfiniBand", "InfiniBand"),
}


@dataclass(frozen=True)
class Maker:
    """What firmware and drivers report about a machine."""

    vendor: str | None = None
    product: str | None = None
    asset_tag: str | None = None
    network_drivers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """The kind of a cluster, and the evidence for it."""

    kind: Kind
    why: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """The kind and its evidence as text."""
        return f"{self.kind} ({', '.join(self.why)})" if self.why else self.kind


def cluster_of(maker: Maker, layers: Collection[str], *, has_efa: bool) -> Cluster:
    """Return the kind by maker, drivers and the ``layers`` of active RDMA ports: "InfiniBand" and "Ethernet"."""
    cloud, evidence = _cloud(maker)
    fabric: _Fabric | None = "InfiniBand" if "InfiniBand" in layers else "RoCE" if "Ethernet" in layers else None
    if has_efa:
        return Cluster("AWS with EFA", (*evidence, "RDMA devices of the driver efa"))
    if cloud is not None:
        with_fabric, without, needed = _CLOUDS[cloud]
        ports = _PORTS[fabric] if fabric else "no active RDMA port"
        return Cluster(with_fabric if with_fabric and fabric == needed else without, (*evidence, ports))
    if fabric is not None:
        return Cluster(fabric, (_PORTS[fabric],))
    wired = sorted(_ETHERNET & set(maker.network_drivers))
    evidence = (f"network drivers {', '.join(wired)}", "no active RDMA port")
    return Cluster("Ethernet", evidence) if wired else Cluster("unknown")


def _cloud(maker: Maker) -> tuple[str | None, tuple[str, ...]]:
    """Return the cloud that made the machine, and the evidence for it."""
    if maker.vendor == _AWS:
        return "AWS", (_AWS,)
    if maker.vendor == _GOOGLE and (maker.product or "Google Compute Engine").startswith("Google Compute"):
        return "Google Cloud", (maker.product or _GOOGLE,)
    if maker.asset_tag == AZURE_ASSET_TAG:
        return "Azure", ("the asset tag of Azure",)
    return None, ()
