"""What NCCL's log says of the transports in use."""

import re
from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

_NET = re.compile(r"NET/(.{1,40})/(\d{1,3})(?:\((\d{1,7})\))?(/GDRDMA)?")


class Transport(Frozen):
    """One direction between two ranks. ``from_gpu`` and ``to_gpu`` are NVML indices, where printed."""

    from_rank: int
    to_rank: int
    via: str  # "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"
    from_gpu: int | None = None
    to_gpu: int | None = None
    end: str | None = None  # "send" or "receive": which end of a network connection says so

    @property
    def kind(self) -> Literal["P2P", "SHM", "NET", "other"]:
        """The transport as NCCL's sources call it."""
        if self.via.startswith("P2P/"):
            return "P2P"
        if self.via.startswith(("SHM/", "direct shared memory")):
            return "SHM"
        return "NET" if self.via.startswith("NET/") else "other"

    @property
    def network(self) -> tuple[str, int, bool] | None:
        """Network, its device and whether it reads and writes GPU memory itself: ("IB", 0, True)."""
        found = _NET.match(self.via)
        return (found[1], int(found[2]), found[4] is not None) if found else None

    @property
    def proxy(self) -> int | None:
        """The rank whose NIC carries it in place of the own one (PXN)."""
        found = _NET.match(self.via)
        return int(found[3]) if found and found[3] else None


class Hca(Frozen):
    """One RDMA port that NCCL listed, under the number it uses for it."""

    index: int
    name: str
    link_layer: str  # IB or RoCE
    speed_mbps: int | None = None


class RankDevice(Frozen):
    """The GPU of one rank of a communicator. ``nvml`` is None before 2.18.3."""

    rank: int
    nvml: int | None
    bus_id: str  # hexadecimal without separators, as NCCL prints it: "1b000"


class CommInit(Frozen):
    """One rank of a communicator whose making was begun, and whether it was ended."""

    rank: int
    ranks: int
    comm_id: str  # equal on all ranks of a communicator: "0x9"
    complete: bool = False


class Pattern(Frozen):
    """A graph that NCCL found for one kind of algorithm, by its own estimate for each channel."""

    pattern: int  # 1 and 2 and 3 are trees, 4 rings, 5 NVLS, 6 CollNet (src/include/graph.h)
    channels: int
    gb_per_s_within: float
    gb_per_s_between: float
    path_within: str  # the farthest between GPUs: "NVL"
    path_between: str  # the farthest between GPU and NIC: "PIX"


class NcclTransportFact(Fact):
    """What NCCL logged of its choice of paths; ``settings`` as the environment or nccl.conf gave them."""

    KIND: ClassVar[str] = "nccl-transports/1"

    version: str | None = None
    transports: tuple[Transport, ...] = ()
    p2p_level: str | None = None
    p2p_disable: str | None = None
    hcas: tuple[Hca, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    devices: tuple[RankDevice, ...] = ()
    comm_sizes: tuple[int, ...] = ()  # ranks of the communicators that were made, each size once
    hosts: tuple[int, ...] = ()  # how many hosts NCCL takes them for
    network: str | None = None  # "IB", "Socket", "AWS Libfabric"
    no_gpu_direct: tuple[str, ...] = ()  # the HCAs to which NCCL found no module for GPUDirect RDMA
    refused: tuple[tuple[int, int], ...] = ()  # NVML indices between which NVML's status forbids P2P
    no_ib_device: bool = False
    no_verbs_library: bool = False
    nvls: bool | None = None  # whether GPUs offer NVSwitch's multicast; None where some do, or none says so
    collnet: tuple[str, ...] = ()  # "COLLNET/SHARP/0/GDRDMA"
    connected: tuple[str, ...] = ()  # "all rings", "NVLS tree"
    inits: tuple[CommInit, ...] = ()  # since 2.16.2, and those begun since 2.18.3
    patterns: tuple[Pattern, ...] = ()
    sockets: tuple[int, int] | None = None  # threads, and sockets of each; not printed where the main thread sends
    interfaces: tuple[str, ...] = ()  # those that ranks bootstrap over: "eth0"
    no_cumem_host: bool = False  # CUDA gives no host memory on a NUMA node; NCCL takes /dev/shm
    host: str | None = None  # of the process, where the lines are of one
    cuda: str | None = None  # with which this NCCL was built: "12.8"
    driver_cuda: str | None = None  # the newest CUDA that the driver knows: "13.0"
    sockets_over: tuple[str, ...] = ()  # those that TCP carries data over, where it does
    plugins: tuple[str, ...] = ()  # loaded from outside: "AWS Libfabric", a path
    no_provider: bool = False  # the plugin of AWS found no adapter it can use
    channels: int | None = None  # rings of a communicator, the most there are
    inits_begun: int = 0  # communicators of the process; known since 2.18.3
    inits_complete: int = 0

    def used_hcas(self) -> tuple[str, ...]:
        """The names of the RDMA devices that carry a channel."""
        names = {hca.index: hca.name for hca in self.hcas}
        used = (transport.network for transport in self.transports)
        found = (names.get(net[1]) for net in used if net and net[0] == "IB")
        return tuple(dict.fromkeys(name for name in found if name))
