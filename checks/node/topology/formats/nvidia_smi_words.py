"""What nvidia-smi prints instead of a topology, and what else people paste by mistake.

The words are nvidia-smi's own error messages and the headings of neighbouring commands.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """A piece of text that is no topology matrix, and what it means."""

    text: str
    meaning: str


#: In the order they are looked for: the first that occurs explains the input.
INSTEAD_OF_A_MATRIX: tuple[Words, ...] = (
    Words(
        "couldn't communicate with the NVIDIA driver",
        "nvidia-smi could not reach the NVIDIA driver on that host: its kernel module is not loaded",
    ),
    Words(
        "Driver/library version mismatch",
        "the driver's library and the loaded kernel module are of different versions there:"
        " reload the module or reboot",
    ),
    Words(
        "Failed to initialize NVML",
        "NVML could not be initialised there; in a container the GPU may have been taken away: restart it",
    ),
    Words("GPU is lost", "a GPU of that host is lost: look for Xid 79 in its kernel log, then reboot"),
    Words("has fallen off the bus", "a GPU of that host is lost: look for Xid 79 in its kernel log"),
    Words("No devices were found", "nvidia-smi found no GPU on that host"),
    Words("Insufficient Permissions", "the user was not allowed to ask nvidia-smi there"),
    Words("nvidia-smi: command not found", "nvidia-smi is not installed on that host"),
    Words("nvidia-smi: not found", "nvidia-smi is not installed on that host"),
    Words("ROCm System Management Interface", "this is the output of rocm-smi; AMD GPUs are not understood"),
    Words("<system version=", "this is a topology file of NCCL, not the output of nvidia-smi topo -m"),
    Words("= Status Ok", "this is the output of nvidia-smi topo -p2p; run nvidia-smi topo -m for the links"),
    Words("Link 0:", "this looks like nvidia-smi nvlink; run nvidia-smi topo -m for the links"),
    Words("| NVIDIA-SMI ", "this is plain nvidia-smi; run nvidia-smi topo -m for the links"),
    Words(
        "\\tGPU0\\t", "the tabs and lines of the output are escaped here, as in JSON or a notebook: undo that"
    ),
)
_LEGENDS = ("NIC Legend:", "= Self")
#: "GPU0,GPU1", "<td>GPU0</td><td>GPU1</td>".
_NAMES_IN_A_ROW = re.compile(r"GPU0[^\n]{1,20}GPU1\b")


def explain(text: str) -> str | None:
    """What a text without a matrix is, as far as its words tell."""
    for words in INSTEAD_OF_A_MATRIX:
        if words.text in text:
            return words.meaning
    if _NAMES_IN_A_ROW.search(text):
        return "the names of GPUs stand in a row here, but not as nvidia-smi topo -m prints them"
    if any(legend in text for legend in _LEGENDS):
        return "only the legend is here; the matrix above it is missing"
    return None
