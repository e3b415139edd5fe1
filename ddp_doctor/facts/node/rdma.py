"""The RDMA devices of one node as the kernel shows them: devices, ports, GID tables, network interfaces."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.roce_gids import Gid
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class NetDevice(Frozen):
    """The network interface over a port. None: unknown."""

    name: str
    mtu_bytes: int | None = None
    operstate: str | None = None
    carrier_changes: int | None = None  # since the interface was created
    master: str | None = None  # the bond or bridge that it is part of
    bond_mode: str | None = None
    slaves: tuple[str, ...] = ()  # of a bond
    mii_status: str | None = None  # of a slave, from its bond: "up", "going down", "down", "going back"
    carrier_up_count: int | None = None  # how often its link came up since the interface was created


class Port(Frozen):
    """A port. None: unknown. Counters count since the driver was loaded or they were cleared."""

    number: int
    state: str | None = None  # "ACTIVE", "DOWN", "INIT", "ARMED"
    phys_state: str | None = None  # "LinkUp", "Polling", "Disabled"
    link_layer: str | None = None
    rate: str | None = None  # "400 Gb/sec (4X NDR)"
    rate_gbit_per_s: float | None = None
    lid: int | None = None
    sm_lid: int | None = None
    gids: tuple[Gid, ...] = ()  # of active ports
    netdevs: tuple[str, ...] = ()
    counters: dict[str, int] = Field(default_factory=dict)  # of active ports

    @property
    def is_active(self) -> bool:
        """Return True if the port carries traffic."""
        return self.state == "ACTIVE"

    @property
    def is_roce(self) -> bool:
        """Return True if the port's packets use Ethernet."""
        return self.link_layer == "Ethernet"


class Hca(Frozen):
    """An RDMA device. None: unknown, or does not exist."""

    name: str
    bus_id: str | None = None  # None for a software device such as rxe or siw
    driver: str | None = None
    numa_node: int | None = None
    node_type: str | None = None  # "CA", "RNIC" (iWARP), "<unknown>" (EFA)
    node_guid: str | None = None
    firmware: str | None = None
    hca_type: str | None = None
    board_id: str | None = None
    is_virtual_function: bool = False  # as its own host sees it; a guest sees an ordinary device
    virtual_functions: int = 0  # number of virtual functions it is split into
    device_node: str | None = None  # "uverbs0"
    device_problem: str | None = None  # why /dev/infiniband/uverbs0 cannot be opened
    ports: tuple[Port, ...] = ()

    @property
    def is_efa(self) -> bool:
        """Return True for Amazon's adapter, which NCCL can use only through a plug-in."""
        return self.driver == "efa"

    @property
    def model(self) -> tuple[str | None, ...]:
        """The make of the device and its function on the card (0 or 1); devices with equal values are comparable."""
        function = self.bus_id.rpartition(".")[2] if self.bus_id else None
        return self.hca_type, self.board_id, self.driver, function


class RdmaFact(Fact):
    """The RDMA devices of one node, and what decides which of them NCCL can use."""

    KIND: ClassVar[str] = "rdma/1"

    hcas: tuple[Hca, ...]
    left_out: int = 0  # number of further devices, which were not read
    netdevs: tuple[NetDevice, ...] = ()
    verbs_library: str | None = None  # libibverbs.so.1, if the loader would find it
    verbs_providers: tuple[str, ...] | None = None  # "mlx5", "efa"; None if they are not in /etc
    settings: dict[str, str] = Field(default_factory=dict)  # NCCL_IB_* as NCCL sees them
    unused_by: str | None = None  # the setting that keeps NCCL from RDMA
    in_container: bool = False
    uptime_s: float | None = None

    def netdev(self, port: Port) -> NetDevice | None:
        """Return the interface over a port, or the first if VLANs add more."""
        netdevs = (netdev for name in port.netdevs for netdev in self.netdevs if netdev.name == name)
        return next(netdevs, None)

    def ports(self) -> list[tuple[Hca, Port]]:
        """Return all ports, in device order."""
        return [(hca, port) for hca in self.hcas for port in hca.ports]

    def candidates(self) -> list[tuple[Hca, Port]]:
        """Return the active ports that NCCL's own transport could use, regardless of NCCL_IB_HCA."""
        return [
            (hca, port)
            for hca, port in self.ports()
            if port.is_active and port.link_layer in nccl_hca.LINK_LAYERS and hca.device_problem is None
        ]

    def chosen(self) -> list[tuple[Hca, Port]]:
        """Return the ports that NCCL uses, in its order: by PCI address."""
        value = self.settings.get(nccl_hca.HCA, "")
        taken = [(hca, port) for hca, port in self.candidates() if nccl_hca.takes(value, hca.name, port.number)]
        taken.sort(key=lambda pair: (pair[0].bus_id is None, pair[0].bus_id or "", pair[1].number))
        return taken[: nccl_hca.MOST_DEVICES]


class PortAfter(Frozen):
    """The values of a port that change: its state, its counters and its interface's carrier changes."""

    hca: str
    number: int
    state: str | None = None
    carrier_changes: int | None = None
    counters: dict[str, int] = Field(default_factory=dict)


class RdmaAfterFact(Fact):
    """The ports of one node after the ranks have exited."""

    KIND: ClassVar[str] = "rdma_after/1"

    ports: tuple[PortAfter, ...]
