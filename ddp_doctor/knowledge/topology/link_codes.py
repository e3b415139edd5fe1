"""The link codes and P2P statuses of ``nvidia-smi topo``, and how far NCCL's P2P goes by default.

The codes of ``topo -m`` mean what the legend of nvidia-smi's output says, in our words. NCCL measures paths itself
(src/graph/topo.h, ``PATH_*``). It has no NODE: a path between two host bridges of one NUMA node counts as PHB. SOC is
the name of SYS in drivers up to about 2017.

The words of ``topo -p2p`` are from nvidia-smi's legend. They are the values of nvmlGpuP2PStatus_t in nvml.h. NCCL asks
NVML for read and write (src/graph/paths.cc, ncclTopoCheckP2p). If one of them is not OK, NCCL fails for GPUs that
NVLink joins, and otherwise uses host memory.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LinkCode:
    """A link code. ``distance`` orders the codes from near to far; ``nccl_path`` is NCCL's own name."""

    code: str
    distance: int
    nccl_path: str
    meaning: str


#: Near to far. NV# means NV1, NV2, … NV18.
LINK_CODES: tuple[LinkCode, ...] = (
    LinkCode("X", 0, "LOC", "the device itself"),
    LinkCode("NV#", 1, "NVL", "# bonded NVLinks"),
    LinkCode("PIX", 2, "PIX", "at most one PCIe bridge"),
    LinkCode("PXB", 3, "PXB", "several PCIe bridges, no host bridge"),
    LinkCode("PHB", 4, "PHB", "a PCIe host bridge, that is through the CPU"),
    LinkCode("NODE", 5, "PHB", "between host bridges of one NUMA node"),
    LinkCode("SYS", 6, "SYS", "across the link between CPU sockets or NUMA nodes"),
    LinkCode("SOC", 6, "SYS", "across the link between CPU sockets (old name of SYS)"),
)
_BY_CODE = {entry.code: entry for entry in LINK_CODES}
_NVLINK = re.compile(r"NV([1-9][0-9]?)")

#: NCCL's path types from near to far (src/graph/topo.h); NCCL_P2P_LEVEL takes these names, in capitals.
NCCL_PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
#: Meanings of the old style's digits; a larger number means 4 (src/graph/paths.cc, ncclGetLevel).
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")

#: How far NCCL lets GPUs communicate directly by default (ncclTopoCheckP2p).
DEFAULT_P2P_LIMIT = "PXB"
#: … except on x86 with this CPU vendor and at most this many GPUs: the limit is SYS then.
SYS_BY_DEFAULT_VENDOR = "AuthenticAMD"
SYS_BY_DEFAULT_GPUS = 2
#: Before this release AMD CPUs had no limit, whatever the number of GPUs (release notes of 2.23.4).
AMD_LIMIT_SINCE = (2, 23)


def link_code(code: str) -> LinkCode:
    """Return the entry of a code as printed, including "NV18". Raises KeyError if it is unknown."""
    return _BY_CODE["NV#" if _NVLINK.fullmatch(code) else code]


def meaning_of(code: str) -> str:
    """Return the code in words, such as "4 bonded NVLinks" for NV4."""
    words = link_code(code).meaning.replace("#", code[2:])
    return words.removesuffix("s") if code == "NV1" else words


def nvlinks(code: str) -> int:
    """Return the number of NVLinks of a code, or 0 if the path is not NVLink."""
    found = _NVLINK.fullmatch(code)
    return int(found[1]) if found else 0


def crosses_sockets(code: str) -> bool:
    """Return True if the path leaves the NUMA node (SYS, formerly SOC)."""
    return link_code(code).nccl_path == "SYS"


def p2p_level(value: str) -> str | None:
    """Return the farthest path type that a value of NCCL_P2P_LEVEL allows, or None if NCCL ignores the value."""
    if value in NCCL_PATHS:
        return value
    digits = re.match(r"\d{1,9}", value)
    return _OLD_LEVELS[min(int(digits[0]), len(_OLD_LEVELS) - 1)] if digits else None


def p2p_limit(gpus: int, cpu_vendor: str | None, level: str | None, version: tuple[int, ...] = ()) -> tuple[str, str]:
    """Return how far NCCL lets ``gpus`` GPUs of a node communicate directly, and the source of that limit.

    ``level`` is the value of NCCL_P2P_LEVEL. A CPU of unknown vendor may be the one with the wider limit. ``version``
    is NCCL's; () is unknown and counts as a recent release.
    """
    known = p2p_level(level) if level else None
    if known:
        return known, f"NCCL_P2P_LEVEL={level} is set"
    if version and version < AMD_LIMIT_SINCE and cpu_vendor == SYS_BY_DEFAULT_VENDOR:
        return "SYS", "NCCL before 2.23 goes so far on AMD CPUs"
    if gpus <= SYS_BY_DEFAULT_GPUS and cpu_vendor in {None, SYS_BY_DEFAULT_VENDOR}:
        unknown = "" if cpu_vendor else "; the CPU's vendor is not recorded"
        return "SYS", f"NCCL goes so far on AMD CPUs with at most {SYS_BY_DEFAULT_GPUS} GPUs{unknown}"
    return DEFAULT_P2P_LIMIT, "NCCL's own limit"


def allowed(code: str, limit: str) -> bool:
    """Return True if a path of this code is within NCCL's limit (inclusive)."""
    return NCCL_PATHS.index(link_code(code).nccl_path) <= NCCL_PATHS.index(limit)


NUMBERED = re.compile("(?:GPU|NIC)(?:0|[1-9][0-9]{0,3})")


def connected(names: Sequence[str], links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return for each name the first name of its group, which links join directly or through others.

    A name without a link is a separate group.
    """
    first = {name: name for name in names}

    def root(name: str) -> str:
        while first[name] != name:
            first[name] = name = first[first[name]]
        return name

    order = {name: index for index, name in enumerate(names)}
    for source, target in links:
        low, high = sorted((root(source), root(target)), key=order.__getitem__)
        first[high] = low
    return {name: root(name) for name in names}


@dataclass(frozen=True)
class P2pStatus:
    """A status word. ``cause`` is the place of the cause: the board, the GPU, the path between, or a setting."""

    word: str
    meaning: str
    cause: Literal["", "chipset", "gpu", "path", "setting", "unknown"]


P2P_STATUSES: tuple[P2pStatus, ...] = (
    P2pStatus("OK", "available", ""),
    P2pStatus("CNS", "the driver does not allow it on this chipset", "chipset"),
    P2pStatus("GNS", "the GPU or its driver does not offer it", "gpu"),
    P2pStatus("TNS", "the path between the GPUs does not carry it", "path"),
    P2pStatus("DR", "a setting of the NVIDIA kernel module turns it off", "setting"),
    P2pStatus("NS", "not supported, without a reason", "unknown"),
    P2pStatus("U", "unknown to the driver", "unknown"),
)
_BY_WORD = {entry.word: entry for entry in P2P_STATUSES}

#: Capabilities by the letters after -p2p (nvidia-smi topo --help); NCCL only checks r and w.
CAPABILITIES = {"r": "reads", "w": "writes", "n": "NVLink", "a": "atomics", "p": "PCIe"}
ASKED_BY_NCCL = "rw"
#: … and NVML's names of the same answers.
CAPABILITY_NAMES = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics"}


def p2p_status(word: str) -> P2pStatus:
    """Return the entry of a word as printed. Raises KeyError if it is unknown."""
    return _BY_WORD[word]
