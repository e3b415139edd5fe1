"""Facts from NCCL's log about the transports in use."""

import re
from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

_NET = re.compile(r"NET/(.{1,40})/(\d{1,3})(?:\((\d{1,7})\))?(/GDRDMA)?")


class Transport(Frozen):
    """A direction between two ranks. ``from_gpu`` and ``to_gpu`` are NVML indices, if printed."""

    from_rank: int
    to_rank: int
    via: str  # "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"
    from_gpu: int | None = None
    to_gpu: int | None = None
    end: str | None = None  # "send" or "receive": the end of a network connection that reports it

    @property
    def kind(self) -> Literal["P2P", "SHM", "NET", "other"]:
        """The transport by its name in NCCL's sources."""
        if self.via.startswith("P2P/"):
            return "P2P"
        if self.via.startswith(("SHM/", "direct shared memory")):
            return "SHM"
        return "NET" if self.via.startswith("NET/") else "other"

    @property
    def network(self) -> tuple[str, int, bool] | None:
        """The network, its device, and whether it reads and writes GPU memory itself: ("IB", 0, True)."""
        found = _NET.match(self.via)
        return (found[1], int(found[2]), found[4] is not None) if found else None

    @property
    def proxy(self) -> int | None:
        """The rank whose NIC carries it instead of the rank's own NIC (PXN), or None."""
        found = _NET.match(self.via)
        return int(found[3]) if found and found[3] else None


class Hca(Frozen):
    """An RDMA port that NCCL listed, with NCCL's number for it."""

    index: int
    name: str
    link_layer: str  # IB or RoCE
    speed_mbps: int | None = None


class RankDevice(Frozen):
    """The GPU of one rank of a communicator. ``nvml`` is None before 2.18.3."""

    rank: int
    nvml: int | None
    bus_id: str  # hexadecimal without separators, as printed by NCCL: "1b000"


class CommInit(Frozen):
    """A rank of a communicator whose initialization began, and whether it completed."""

    rank: int
    ranks: int
    comm_id: str  # equal on all ranks of a communicator: "0x9"
    complete: bool = False


class Pattern(Frozen):
    """A graph that NCCL found for one kind of algorithm, by its own estimate for each channel."""

    pattern: int  # 1 to 3 are trees, 4 rings, 5 NVLS, 6 CollNet (src/include/graph.h)
    channels: int
    gb_per_s_within: float
    gb_per_s_between: float
    path_within: str  # the farthest between GPUs: "NVL"
    path_between: str  # the farthest between GPU and NIC: "PIX"


class NcclTransportFact(Fact):
    """The choice of paths that NCCL logged. ``settings`` as the environment or nccl.conf gave them."""

    KIND: ClassVar[str] = "nccl-transports/1"

    version: str | None = None
    transports: tuple[Transport, ...] = ()
    p2p_level: str | None = None
    p2p_disable: str | None = None
    hcas: tuple[Hca, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    devices: tuple[RankDevice, ...] = ()
    comm_sizes: tuple[int, ...] = ()  # ranks of the initialized communicators, each size once
    hosts: tuple[int, ...] = ()  # numbers of hosts that NCCL found for them
    network: str | None = None  # "IB", "Socket", "AWS Libfabric"
    no_gpu_direct: tuple[str, ...] = ()  # HCAs for which NCCL found no GPUDirect RDMA module
    refused: tuple[tuple[int, int], ...] = ()  # pairs of NVML indices without P2P according to NVML's status
    no_ib_device: bool = False
    no_verbs_library: bool = False
    nvls: bool | None = None  # GPUs offer NVSwitch's multicast; None if only some do, or no line reports it
    collnet: tuple[str, ...] = ()  # "COLLNET/SHARP/0/GDRDMA"
    connected: tuple[str, ...] = ()  # "all rings", "NVLS tree"
    inits: tuple[CommInit, ...] = ()  # since 2.16.2; incomplete ones since 2.18.3
    patterns: tuple[Pattern, ...] = ()
    sockets: tuple[int, int] | None = None  # threads, and sockets per thread; not printed if the main thread sends
    interfaces: tuple[str, ...] = ()  # that ranks bootstrap over: "eth0"
    no_cumem_host: bool = False  # CUDA cannot allocate host memory on a NUMA node; NCCL uses /dev/shm
    host: str | None = None  # of the process, if all lines are from one process
    cuda: str | None = None  # version this NCCL was built with: "12.8"
    driver_cuda: str | None = None  # newest CUDA that the driver supports: "13.0"
    sockets_over: tuple[str, ...] = ()  # interfaces that carry data over TCP, if any
    plugins: tuple[str, ...] = ()  # loaded from outside: "AWS Libfabric", a path
    no_provider: bool = False  # the plugin of AWS found no adapter it can use
    channels: int | None = None  # rings of a communicator, the maximum
    inits_begun: int = 0  # communicators of the process; known since 2.18.3
    inits_complete: int = 0

    def used_hcas(self) -> tuple[str, ...]:
        """Return the names of the RDMA devices that carry a channel."""
        names = {hca.index: hca.name for hca in self.hcas}
        used = (transport.network for transport in self.transports)
        found = (names.get(net[1]) for net in used if net and net[0] == "IB")
        return tuple(dict.fromkeys(name for name in found if name))
