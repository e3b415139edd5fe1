"""What the words of ``nvidia-smi topo -p2p`` mean, and what NCCL makes of them.

The words are nvidia-smi's own legend; they are the values of nvmlGpuP2PStatus_t in nvml.h. NCCL asks
NVML for read and write (src/graph/paths.cc, ncclTopoCheckP2p): where one of them is not OK it fails for
GPUs that NVLink joins, and otherwise goes through host memory.
"""

from dataclasses import dataclass
from typing import Literal


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
