"""The transport that NCCL should use between two GPUs of one node (P2P, shared memory or network), and why.

NCCL tries its transports in the order P2P, SHM, NET and uses the first that reports it can connect
(src/transport/transport.cc). P2P does within the limit of link_codes.p2p_limit if NVML reports reads and writes as OK.
P2P and SHM need one host and one /dev/shm (src/graph/paths.cc, ncclTopoCheckP2p; src/transport/shm.cc, shmCanConnect).
Both yield to a faster network, which is possible between GPUs beyond a host bridge (ncclTopoCheckNet).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ddp_doctor.knowledge.topology import link_codes

Kind = Literal["P2P", "SHM", "NET"]

#: Releases before this may use P2P through the host bridge of newer Intel CPUs; when that ended is not recorded.
_OLD = (2, 12)
#: Words in the names of GPUs without GPUDirect RDMA, which NVIDIA offers only on data center and workstation boards
#: (https://docs.nvidia.com/cuda/gpudirect-rdma/).
WITHOUT_GPUDIRECT = ("GeForce", "TITAN")

#: The variable that limits how far GPUDirect RDMA goes.
GDR_LEVEL = "NCCL_NET_GDR_LEVEL"
#: NCCL_NET_GDR_C2C is on by default: NICs of a Grace CPU reach the memory of its GPU (src/graph/paths.cc: 0 in 2.26.2
#: to 2.26.6, 1 in 2.27.3 and newer; the path from GPU to NIC is then P2C, nearer than PHB).
GDR_C2C = "NCCL_NET_GDR_C2C"
GDR_C2C_SINCE = (2, 27)

#: On one simulated machine, 2.21.5, 2.27.5 and 2.32.3 used the network between the sockets of a node, and 2.30.7 shared
#: memory ("via SHM/direct", 2026-11-23). Releases in between were not tested.
_STAY_IN_MEMORY = ((2, 28), (2, 32))


@dataclass(frozen=True)
class Choice:
    """The transport that NCCL should use, and the reason. Not ``sure``: a deciding fact is unknown."""

    kind: Kind
    why: str
    sure: bool = True


@dataclass(frozen=True)
class Node:
    """The deciding facts of one node. ``version`` is NCCL's, or () if unknown."""

    gpus: int  # that the job uses on the node
    cpu_vendor: str | None = None
    version: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    def is_on(self, name: str) -> bool:
        """Return True if a variable is set to 1."""
        return self.settings.get(name, "").strip() == "1"

    def limit(self) -> tuple[str, str]:
        """Return how far P2P goes, and the source of that limit."""
        level = self.settings.get("NCCL_P2P_LEVEL")
        return link_codes.p2p_limit(self.gpus, self.cpu_vendor, level, self.version)


@dataclass(frozen=True)
class Pair:
    """The deciding facts of two GPUs.

    ``p2p_status`` is NVML's word for reads and writes ("OK", "CNS"), the worse of both, or None if it was not queried.
    ``bridged``: each is joined by NVLink to a third GPU. ``near_network``: a NIC within PXB of each is faster than the
    path through the CPU; None if unknown.
    """

    code: str
    p2p_status: str | None = None
    bridged: bool = False
    near_network: bool | None = False


def choose(node: Node, pair: Pair) -> Choice:
    """Return the transport that NCCL should use between two GPUs of this node."""
    choice = _p2p(node, pair)
    if choice.kind == "SHM" and node.is_on("NCCL_SHM_DISABLE"):
        why = f"{choice.why}; NCCL_SHM_DISABLE=1 forbids shared memory"
        return replace(choice, kind="NET", why=why)
    stays = node.is_on("NCCL_NET_DISABLE_INTRA") or pair.bridged
    if stays or pair.near_network is False or not link_codes.crosses_sockets(pair.code):
        return choice
    if pair.near_network and _STAY_IN_MEMORY[0] <= node.version < _STAY_IN_MEMORY[1]:
        return replace(choice, why=f"{choice.why}; other releases take the faster network", sure=False)
    if pair.near_network:
        return Choice("NET", "the NIC at each GPU is faster than the link between the sockets", choice.sure)
    more = "; the network instead, where it is faster than the link between the sockets"
    return replace(choice, why=choice.why + more, sure=False)


def _p2p(node: Node, pair: Pair) -> Choice:
    """Return P2P, or SHM with the reason against P2P."""
    if node.is_on("NCCL_P2P_DISABLE"):
        return Choice("SHM", "NCCL_P2P_DISABLE=1 forbids P2P")
    path = link_codes.link_code(pair.code).nccl_path
    if pair.bridged and path != "NVL":
        path = "NVB"  # two NVLinks through a third GPU are nearer than PCIe (PATH_NVB)
    limit, says = node.limit()
    if link_codes.NCCL_PATHS.index(path) > link_codes.NCCL_PATHS.index(limit):
        sure = not (path == "PHB" and node.version and node.version < _OLD)
        return Choice("SHM", f"P2P goes up to {limit} ({says})", sure)
    ignored = node.settings.get("NCCL_IGNORE_DISABLED_P2P", "").strip() == "2"
    if pair.p2p_status not in {None, "OK"} and not ignored:
        return Choice("SHM", f"the driver offers no P2P here ({pair.p2p_status})")
    if path in {"NVL", "NVB"}:
        return Choice("P2P", "NVLink" if path == "NVL" else "NVLink through another GPU", path == "NVL")
    # P2P through a CPU depends on its vendor: with two GPUs, an unknown vendor may be AMD.
    vendor = path in {"PIX", "PXB"} or node.cpu_vendor is not None or says.startswith("NCCL_P2P_LEVEL")
    sure = vendor and (ignored or pair.p2p_status == "OK")
    unasked = "" if pair.p2p_status or ignored else ", where the driver offers it"
    return Choice("P2P", f"P2P goes up to {limit} ({says}){unasked}", sure)


def gpudirect(
    node: Node, code: str, model: str | None, *, kernel: tuple[bool | None, str], c2c: bool = False
) -> tuple[bool | None, str]:
    """Return whether NCCL lets a NIC read and write a GPU's memory itself (None if unknown), and why.

    The default limit is PXB (src/graph/paths.cc, ncclTopoCheckGdr). ``kernel`` is the answer for the kernel module or
    dma-buf. ``c2c``: the GPU is attached to the CPU by C2C.
    """
    level = node.settings.get(GDR_LEVEL)
    limit = link_codes.p2p_level(level) if level else None
    says = f"{GDR_LEVEL}={level} is set" if limit else "NCCL's own limit"
    if c2c and link_codes.link_code(code).nccl_path == "PHB" and limit in {None, "P2C"}:
        wanted = node.settings.get(GDR_C2C, "").strip()
        if wanted == "0" or (not wanted and node.version and node.version < GDR_C2C_SINCE):
            return False, f"{GDR_C2C}=0 is set" if wanted else "NCCL before 2.27 does not use C2C for it"
        if not (wanted or node.version):
            return None if kernel[0] is not False else False, "over C2C since NCCL 2.27, host memory before"
        return kernel[0], f"over C2C and the CPU; {kernel[1]}"
    if not link_codes.allowed(code, limit or link_codes.DEFAULT_P2P_LIMIT):
        return False, f"GPUDirect RDMA goes up to {limit or link_codes.DEFAULT_P2P_LIMIT} ({says})"
    if model is not None and any(word in model for word in WITHOUT_GPUDIRECT):
        return False, f"{model} has no GPUDirect RDMA"
    return kernel if model is not None or kernel[0] is False else (None, kernel[1])


def bridged(gpus: Sequence[str], links: Mapping[str, Mapping[str, str]], first: str, second: str) -> int:
    """Return how many NVLinks join two GPUs through the best third GPU, or 0 if they are joined directly."""
    if link_codes.nvlinks(links[first].get(second, "")):
        return 0
    others = (gpu for gpu in gpus if gpu not in (first, second))
    through = (min(link_codes.nvlinks(links[gpu].get(end, "")) for end in (first, second)) for gpu in others)
    return max(through, default=0)


def near(codes_to_nics: Sequence[Sequence[str]]) -> bool:
    """Return True if each GPU, given its codes to all NICs, has a NIC within PXB."""
    return all(any(link_codes.allowed(code, "PXB") for code in codes) for codes in codes_to_nics)
