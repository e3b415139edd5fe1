"""Access Control Services (ACS) in the configuration space of a PCIe bridge.

/sys/bus/pci/devices/0000:17:01.0/config has 4096 bytes for root, and 64 for everybody else, root of a
container included. Extended capabilities are a list that begins at byte 0x100; the first two bytes of each
are its number, the upper 12 bits of the next two where the next one stands::

    0x100: 01 00 12 14   number 0x0001 (error reporting), the next stands at 0x140
    0x140: 0d 00 01 00   number 0x000d (ACS), the last of the list
    0x144: 5f 00 1d 00   what it can do; 0x001d is in force: SV, RR, CR, UF

Source: PCI Express Base Specification, 7.6.3 and 7.7.11; Linux include/uapi/linux/pci_regs.h.
"""

_NAMES = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")

_SHOWN_TO_ALL = 64
_EXTENDED = 0x100
_ACS = 0x000D
_MOST_CAPABILITIES = 64  # a broken list may run in a circle


def is_cut_off(config: bytes) -> bool:
    """Whether the kernel showed only what everybody may see."""
    return len(config) <= _SHOWN_TO_ALL


def acs_control(config: bytes) -> int | None:
    """The ACS control register; None where the bridge has none, or the list is broken."""
    at = _EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if at < _EXTENDED or at + 8 > len(config):
            return None
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):  # none, or a device that does not answer
            return None
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20 & 0xFFC
    return None


def acs_words(control: int) -> str:
    """What is in force, in lspci's words: "SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+"."""
    return " ".join(f"{name}+" for bit, name in enumerate(_NAMES) if control >> bit & 1) or "nothing"
