"""What ``NCCL_DEBUG=INFO`` tells of the paths NCCL chose: who talks to whom over what.

    wk:8811:8840 [0] NCCL INFO NCCL version 2.27.5+cuda12.8
    wk:8811:8840 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
    wk:8811:8840 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE [1]mlx5_bond_0:1/RoCE [RO]; OOB eth0:…
    wk:8811:8840 [0] NCCL INFO Using network IB
    wk:8811:8840 [0] NCCL INFO NET/Socket: Using 2 threads and 8 sockets per thread
    wk:8811:8840 [0] NCCL INFO comm 0x55d rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9 - Init START
    wk:8811:8840 [0] NCCL INFO comm 0x55d rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
    wk:8811:8840 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    wk:8811:8840 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/1/GDRDMA
    wk:8811:8840 [0] NCCL INFO CollNet 00/0 : 2 [receive] via COLLNET/SHARP/0/GDRDMA
    wk:8811:8840 [0] NCCL INFO NVLS multicast support is available on dev 0
    wk:8811:8840 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1
    wk:8811:8840 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
    wk:8811:8840 [0] NCCL INFO comm 0x55d rank 0 nranks 4 … busId 1b000 commId 0x9 - Init COMPLETE

Up to 2.6 the line says Ring; the connection number behind the channel came in 2.14; the brackets hold
the NVML index since 2.18.3 and a PCI bus id before (src/transport/{p2p,shm,net}.cc of each release). The
number in NET/IB/3(2) is the rank whose NIC is used in place of the own one (PXN). Since 2.22 rings and trees
are connected at the first collective, so that a log without that line says nothing.
"""

import re
from collections.abc import Iterable
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

T = TypeVar("T")

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_END = r"(\d{1,7})(?:\[([0-9a-f]{1,12})\])?"
_CHANNEL = re.compile(
    rf"(?:Channel|Ring) \d+(?:/\d+)? : {_END} -> {_END} (?:\[(send|receive)\] )?via (\S[^\r\n]{{0,80}})"
)
_SET = re.compile(r"(NCCL_[A-Z0-9_]{1,60}) set (?:by environment )?to ([^\r\n]{1,200})")
_NET_IB = re.compile(r"NET/IB ?: (?:Using )?\[\d.*")
#: ``[0]mlx5_2:1/RoCE`` in the list of all, ``[0] mlx5_2:uverbs2:1/RoCE … speed=100000`` one by one since 2.27.
_HCA = re.compile(
    r"\[(\d{1,3})\] ?([A-Za-z0-9_.-]{1,64}):(?:[A-Za-z0-9_.-]*:)?(\d{1,3})/(IB|RoCE)"
    r"(?: provider=\S{1,40} speed=(\d{1,9}))?"
)
_NET = re.compile(r"NET/(.{1,40})/(\d{1,3})(?:\((\d{1,7})\))?(/GDRDMA)?")
_DEVICE = re.compile(
    r"comm 0x[0-9a-f]{1,16} rank (\d{1,7}) nranks (\d{1,7}) cudaDev \d{1,3}"
    r"(?: nvmlDev (\d{1,3}))? busId ([0-9a-f]{1,12})"
    r"(?: commId (0x[0-9a-f]{1,16}))?(?: - Init (START|COMPLETE))?"
)
_COLLNET = re.compile(r"CollNet \d+(?:/\d+)? : \d{1,7} \[(?:send|receive)\] via (COLLNET/[^\r\n]{1,80})")
_NVLS = re.compile(r"NVLS multicast support is (not )?available on dev \d")
_CONNECTED = re.compile(r"Connected (all rings|all trees|binomial trees|NVLS tree|Collnet Chains)")
#: "speed" before 2.14.
_PATTERN = re.compile(
    r"Pattern (\d{1,2}), crossNic \d, nChannels (\d{1,3}), (?:bw|speed) (\d{1,6}\.\d{1,9})/(\d{1,6}\.\d{1,9}),"
    r" type ([A-Z0-9]{2,4})/([A-Z0-9]{2,4})"
)
_HOSTS = re.compile(r"nRanks \d{1,7} nNodes (\d{1,7}) localRanks")
_NETWORK = re.compile(r"Using network ([^\r\n]{1,60})")
_NO_GDR = re.compile(r"GPU Direct RDMA Disabled for HCA \d{1,3} '([^']{1,64})'")
_REFUSED = re.compile(r"P2P is disabled between connected GPUs (\d{1,3}) and (\d{1,3})")
_SOCKETS = re.compile(r"NET/Socket: Using (\d{1,3}) threads and (\d{1,3}) sockets per thread")
_NO_CUMEM_HOST = "cuMem host allocations do not appear to be working"
_NO_VERBS = "Failed to open libibverbs.so"
_NO_IB = "NET/IB : No device found"

#: A line that holds none of these says nothing that is read here.
_WORDS = re.compile(
    r" via |NCCL version|NCCL_[A-Z0-9_]{1,60} set |NET/|Using network| busId | nRanks |GPU Direct RDMA Disabled"
    rf"|P2P is disabled|{re.escape(_NO_VERBS)}|{_NO_CUMEM_HOST}|NVLS multicast|Connected |Pattern \d"
)


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
    sockets: tuple[int, int] | None = (
        None  # threads, and sockets of each; not printed where the main thread sends
    )
    no_cumem_host: bool = False  # CUDA gives no host memory on a NUMA node; NCCL takes /dev/shm

    def used_hcas(self) -> tuple[str, ...]:
        """The names of the RDMA devices that carry a channel."""
        names = {hca.index: hca.name for hca in self.hcas}
        used = (transport.network for transport in self.transports)
        found = (names.get(net[1]) for net in used if net and net[0] == "IB")
        return tuple(dict.fromkeys(name for name in found if name))


def says_something(line: str) -> bool:
    """Whether a line of a log may hold what is read here."""
    return _WORDS.search(line) is not None


def settings_in(text: str) -> dict[str, str]:
    """The variables that NCCL says it reads, as the environment or nccl.conf gave them."""
    return {found[1]: found[2].strip().removesuffix(".") for found in _SET.finditer(text)}


def version_in(text: str) -> str | None:
    """NCCL's version."""
    found = _VERSION.search(text)
    return found[1] if found else None


def parse_nccl_log(text: str) -> NcclTransportFact:
    """Read the INFO lines of one or more ranks; lines of other kinds are passed over."""
    settings = settings_in(text)
    devices = list(_DEVICE.finditer(text))
    network = _NETWORK.search(text)
    return NcclTransportFact(
        version=version_in(text),
        transports=_once(_transport(found) for found in _CHANNEL.finditer(text)),
        p2p_level=settings.get("NCCL_P2P_LEVEL"),
        p2p_disable=settings.get("NCCL_P2P_DISABLE"),
        hcas=_once(_hca(hca) for line in _NET_IB.finditer(text) for hca in _HCA.finditer(line[0])),
        settings=settings,
        devices=_once(_device(found) for found in devices),
        comm_sizes=_once(int(found[2]) for found in devices),
        hosts=_once(int(found[1]) for found in _HOSTS.finditer(text)),
        network=network[1].strip() if network else None,
        no_gpu_direct=_once(found[1] for found in _NO_GDR.finditer(text)),
        refused=_once((int(found[1]), int(found[2])) for found in _REFUSED.finditer(text)),
        no_ib_device=_NO_IB in text,
        no_verbs_library=_NO_VERBS in text,
        nvls=_nvls({found[1] is None for found in _NVLS.finditer(text)}),
        collnet=_once(found[1].strip() for found in _COLLNET.finditer(text)),
        connected=_once(found[1] for found in _CONNECTED.finditer(text)),
        inits=_inits(devices),
        patterns=_once(_pattern(found) for found in _PATTERN.finditer(text)),
        sockets=_sockets(_SOCKETS.search(text)),
        no_cumem_host=_NO_CUMEM_HOST in text,
    )


def _sockets(found: re.Match[str] | None) -> tuple[int, int] | None:
    return (int(found[1]), int(found[2])) if found else None


def _nvls(said: set[bool]) -> bool | None:
    return said.pop() if len(said) == 1 else None


def _inits(devices: Iterable[re.Match[str]]) -> tuple[CommInit, ...]:
    found: dict[tuple[str, int], CommInit] = {}
    for device in devices:
        if device[5] and device[6]:
            key = (device[5], int(device[1]))
            complete = device[6] == "COMPLETE" or (key in found and found[key].complete)
            found[key] = CommInit(rank=key[1], ranks=int(device[2]), comm_id=key[0], complete=complete)
    return tuple(found.values())


def _pattern(found: re.Match[str]) -> Pattern:
    return Pattern(
        pattern=int(found[1]),
        channels=int(found[2]),
        gb_per_s_within=float(found[3]),
        gb_per_s_between=float(found[4]),
        path_within=found[5],
        path_between=found[6],
    )


def _once(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _transport(found: re.Match[str]) -> Transport:
    return Transport(
        from_rank=int(found[1]),
        to_rank=int(found[3]),
        via=found[6].strip(),
        from_gpu=_nvml_index(found[2]),
        to_gpu=_nvml_index(found[4]),
        end=found[5],
    )


def _hca(found: re.Match[str]) -> Hca:
    speed = int(found[5]) if found[5] else None
    return Hca(index=int(found[1]), name=found[2], link_layer=found[4], speed_mbps=speed)


def _device(found: re.Match[str]) -> RankDevice:
    return RankDevice(rank=int(found[1]), nvml=int(found[3]) if found[3] else None, bus_id=found[4])


def _nvml_index(bracket: str | None) -> int | None:
    """The GPU's number; None for a bus id, which has three digits at least."""
    return int(bracket) if bracket is not None and len(bracket) <= 2 and bracket.isdecimal() else None
