"""What the link codes of ``nvidia-smi topo -m`` mean, and how far NCCL goes on its own.

Meanings are the legend of nvidia-smi's own output, in our words. NCCL measures paths itself
(src/graph/topo.h, ``PATH_*``); it has no NODE: a path between two host bridges of one NUMA node
counts as PHB there. SOC is the name that drivers up to about 2017 gave to SYS.

What the words of ``nvidia-smi topo -p2p`` mean, and what NCCL makes of them.

The words are nvidia-smi's own legend; they are the values of nvmlGpuP2PStatus_t in nvml.h. NCCL asks
NVML for read and write (src/graph/paths.cc, ncclTopoCheckP2p): where one of them is not OK it fails for
GPUs that NVLink joins, and otherwise goes through host memory.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LinkCode:
    """One code: ``distance`` orders the codes from near to far; ``nccl_path`` is NCCL's own word."""

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
#: What the digits of the old style mean; above 4 is 4 (src/graph/paths.cc, ncclGetLevel).
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")

#: How far NCCL lets GPUs talk directly by default (ncclTopoCheckP2p).
DEFAULT_P2P_LIMIT = "PXB"
#: … except on x86 with this CPU vendor and at most this many GPUs, where the limit is SYS.
SYS_BY_DEFAULT_VENDOR = "AuthenticAMD"
SYS_BY_DEFAULT_GPUS = 2
#: Before this release AMD CPUs had no limit, whatever the number of GPUs (release notes of 2.23.4).
AMD_LIMIT_SINCE = (2, 23)


def link_code(code: str) -> LinkCode:
    """The entry of a code as printed ("NV18" too). Raises KeyError for an unknown one."""
    return _BY_CODE["NV#" if _NVLINK.fullmatch(code) else code]


def meaning_of(code: str) -> str:
    """The code in words; of NV4 "4 bonded NVLinks"."""
    words = link_code(code).meaning.replace("#", code[2:])
    return words.removesuffix("s") if code == "NV1" else words


def nvlinks(code: str) -> int:
    """How many NVLinks a code means; 0 where the path is no NVLink."""
    found = _NVLINK.fullmatch(code)
    return int(found[1]) if found else 0


def crosses_sockets(code: str) -> bool:
    """Whether the path leaves the NUMA node (SYS, formerly SOC)."""
    return link_code(code).nccl_path == "SYS"


def p2p_level(value: str) -> str | None:
    """The path type that a value of NCCL_P2P_LEVEL allows up to; None where NCCL ignores the value."""
    if value in NCCL_PATHS:
        return value
    digits = re.match(r"\d{1,9}", value)
    return _OLD_LEVELS[min(int(digits[0]), len(_OLD_LEVELS) - 1)] if digits else None


def p2p_limit(gpus: int, cpu_vendor: str | None, level: str | None, version: tuple[int, ...] = ()) -> tuple[str, str]:
    """How far NCCL lets ``gpus`` GPUs of a node talk directly, and what says so.

    ``level`` is the value of NCCL_P2P_LEVEL. A CPU of unknown vendor may be the one with the wider limit.
    ``version`` is NCCL's; () where it is not known, then a recent one is meant.
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
    """Whether a path of this code is within NCCL's limit, both inclusive."""
    return NCCL_PATHS.index(link_code(code).nccl_path) <= NCCL_PATHS.index(limit)


NUMBERED = re.compile("(?:GPU|NIC)(?:0|[1-9][0-9]{0,3})")


def connected(names: Sequence[str], links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """For each name the first name of its group: what links join, directly or through others.

    A name without a link is a group of its own.
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
    """One word; ``cause`` says where to look: the board, the GPU, the path between, or a setting."""

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

#: What the letters behind -p2p ask for (nvidia-smi topo --help); NCCL looks at r and w alone.
CAPABILITIES = {"r": "reads", "w": "writes", "n": "NVLink", "a": "atomics", "p": "PCIe"}
ASKED_BY_NCCL = "rw"
#: … and what the same answers are called where NVML gave them.
CAPABILITY_NAMES = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics"}


def p2p_status(word: str) -> P2pStatus:
    """The entry of a word as printed. Raises KeyError for an unknown one."""
    return _BY_WORD[word]
