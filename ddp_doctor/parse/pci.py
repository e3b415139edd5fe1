r"""PCI devices: their place in the tree, the path between two of them, and a bridge's Access Control Services.

    /sys/bus/pci/devices/0000:1b:00.0 ->
        ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1b:00.0
                         host bridge root port    switch: up-  and downstream port   the device

nvidia-smi's legend, in our words: PIX crosses one switch at most, PXB several, PHB the host bridge, NODE two host
bridges of one NUMA node, SYS everything else. One switch is two bridges in the tree, so two devices are PIX if neither
is more than one bridge below their shared bridges. NVML counts the same way (nvmlDeviceGetTopologyCommonAncestor), and
so did NCCL up to 2.4 (src/graph/topo.h, pciDistance).

Access Control Services (ACS) in the configuration space of a PCIe bridge.

/sys/bus/pci/devices/0000:17:01.0/config has 4096 bytes for root, and 64 for other users, including root of a container.
Extended capabilities are a list that begins at byte 0x100. The first two bytes of each are its number, and the upper 12
bits of the next two are the position of the next capability::

    0x100: 01 00 12 14   number 0x0001 (error reporting), the next is at 0x140
    0x140: 0d 00 01 00   number 0x000d (ACS), the last of the list
    0x144: 5f 00 1d 00   what it can do; 0x001d is in force: SV, RR, CR, UF

Source: PCI Express Base Specification, 7.6.3 and 7.7.11; Linux include/uapi/linux/pci_regs.h.
"""

import re
from itertools import takewhile

from ddp_doctor.facts.node.pcie import shared_bridges
from ddp_doctor.facts.node.topology import PciDevice

#: Up to eight digits of domain: a machine's own bridges (VMD, Hyper-V) count from 10000.
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def read_path(link: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Return a device, its host bridge, and the bridges between, from the target of a link in /sys.

    The link may continue below the device (``…/0000:1a:00.0/infiniband/mlx5_0``).
    """
    parts = link.lower().split("/")
    roots = [at for at, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)]
    if not roots:
        return None
    below = tuple(takewhile(_BUS_ID.fullmatch, parts[roots[-1] + 1 :]))
    return (below[-1], parts[roots[-1]], below[:-1]) if below else None


def is_bus_id(text: str) -> bool:
    """Return True if a text is the address of a PCI device, such as "0000:1b:00.0"."""
    return _BUS_ID.fullmatch(text) is not None


def link_code(first: PciDevice, second: PciDevice) -> str:
    """Return the code of ``nvidia-smi topo -m`` for the path over PCI: PIX, PXB, PHB, NODE or SYS."""
    if first.root != second.root:  # -1, without a node, is one node for NCCL
        return "NODE" if first.numa_node is not None and first.numa_node == second.numa_node else "SYS"
    shared = shared_bridges(first.bridges, second.bridges)
    if shared == 0:
        return "PHB"
    return "PIX" if max(len(first.bridges), len(second.bridges)) - shared <= 1 else "PXB"


_NAMES = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")

_SHOWN_TO_ALL = 64
_EXTENDED = 0x100
_ACS = 0x000D
_MOST_CAPABILITIES = 64  # a damaged list may be a circle


def is_cut_off(config: bytes) -> bool:
    """Return True if the kernel showed only the bytes that all users may see."""
    return len(config) <= _SHOWN_TO_ALL


def acs_control(config: bytes) -> int | None:
    """Return the ACS control register, or None if the bridge has none or the list is damaged."""
    at = _EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if at < _EXTENDED or at + 8 > len(config):
            return None
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):  # no capability, or a device that does not answer
            return None
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20 & 0xFFC
    return None


def acs_words(control: int) -> str:
    """Return the enabled controls by lspci's names: "SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+"."""
    return " ".join(f"{name}+" for bit, name in enumerate(_NAMES) if control >> bit & 1) or "nothing"
