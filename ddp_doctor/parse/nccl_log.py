"""What ``NCCL_DEBUG=INFO`` tells of the paths NCCL chose: who talks to whom over what.

    wk:8811:8840 [0] NCCL INFO NCCL version 2.27.5+cuda12.8
    wk:8811:8840 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
    wk:8811:8840 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE [1]mlx5_bond_0:1/RoCE [RO]; OOB eth0:…
    wk:8811:8840 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    wk:8811:8840 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/1/GDRDMA

Up to 2.6 the line says Ring; the connection number behind the channel came in 2.14; the brackets hold
the NVML index since 2.18.3 and a PCI bus id before (src/transport/{p2p,shm,net}.cc of each release).
"""

import re
from typing import ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_END = r"(\d{1,7})(?:\[([0-9a-f]{1,12})\])?"
_CHANNEL = re.compile(
    rf"(?:Channel|Ring) \d+(?:/\d+)? : {_END} -> {_END} (?:\[(?:send|receive)\] )?via (\S[^\r\n]{{0,80}})"
)
_SET = re.compile(r"(NCCL_P2P_LEVEL|NCCL_P2P_DISABLE) set by environment to ([^\s.]{1,40})")
_NET_IB = re.compile(r"NET/IB ?: (?:Using )?\[\d.*")
#: ``[0]mlx5_2:1/RoCE`` in the list of all, ``[0] mlx5_2:uverbs2:1/RoCE`` one by one since 2.27.
_HCA = re.compile(r"\[(\d{1,3})\] ?([A-Za-z0-9_.-]{1,64}):(?:[A-Za-z0-9_.-]*:)?(\d{1,3})/(IB|RoCE)")
_NET_IB_PATH = re.compile(r"NET/IB/(\d{1,3})")


class Transport(Frozen):
    """One direction between two ranks. ``from_gpu`` and ``to_gpu`` are NVML indices, where printed."""

    from_rank: int
    to_rank: int
    via: str  # "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"
    from_gpu: int | None = None
    to_gpu: int | None = None


class Hca(Frozen):
    """One RDMA port that NCCL listed, under the number it uses for it."""

    index: int
    name: str
    link_layer: str  # IB or RoCE


class NcclTransportFact(Fact):
    """What NCCL logged of its choice of paths; ``p2p_level`` and ``p2p_disable`` as set by the user."""

    KIND: ClassVar[str] = "nccl-transports/1"

    version: str | None = None
    transports: tuple[Transport, ...] = ()
    p2p_level: str | None = None
    p2p_disable: str | None = None
    hcas: tuple[Hca, ...] = ()

    def used_hcas(self) -> tuple[str, ...]:
        """The names of the RDMA devices that carry a channel."""
        names = {hca.index: hca.name for hca in self.hcas}
        used = (_NET_IB_PATH.match(transport.via) for transport in self.transports)
        found = (names.get(int(path[1])) for path in used if path)
        return tuple(dict.fromkeys(name for name in found if name))


def parse_nccl_log(text: str) -> NcclTransportFact:
    """Read the INFO lines of one or more ranks; lines of other kinds are passed over."""
    version = _VERSION.search(text)
    settings = {found[1]: found[2] for found in _SET.finditer(text)}
    transports = dict.fromkeys(_transport(found) for found in _CHANNEL.finditer(text))
    hcas = dict.fromkeys(
        Hca(index=int(hca[1]), name=hca[2], link_layer=hca[4])
        for line in _NET_IB.finditer(text)
        for hca in _HCA.finditer(line[0])
    )
    return NcclTransportFact(
        version=version[1] if version else None,
        transports=tuple(transports),
        p2p_level=settings.get("NCCL_P2P_LEVEL"),
        p2p_disable=settings.get("NCCL_P2P_DISABLE"),
        hcas=tuple(hcas),
    )


def _transport(found: re.Match[str]) -> Transport:
    return Transport(
        from_rank=int(found[1]),
        to_rank=int(found[3]),
        via=found[5].strip(),
        from_gpu=_nvml_index(found[2]),
        to_gpu=_nvml_index(found[4]),
    )


def _nvml_index(bracket: str | None) -> int | None:
    """The GPU's number; None for a bus id, which has three digits at least."""
    return int(bracket) if bracket is not None and len(bracket) <= 2 and bracket.isdecimal() else None
