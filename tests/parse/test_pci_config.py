"""Access control in the configuration space of a bridge, byte by byte."""

import struct

import pytest

from ddp_doctor.facts.node.pcie import REDIRECT
from ddp_doctor.parse.pci import acs_control, acs_words, is_cut_off

ACS = 0x000D


def config(*capabilities: tuple[int, int, int], control: int = 0x1D, size: int = 4096) -> bytes:
    """Return a configuration space with extended capabilities: position, number and next position of each."""
    space = bytearray(size)
    for at, number, following in capabilities:
        struct.pack_into("<I", space, at, number | 1 << 16 | following << 20)
        if number == ACS:
            struct.pack_into("<HH", space, at + 4, 0x5F, control)
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (config((0x100, ACS, 0)), 0x1D),
        (config((0x100, 0x0001, 0x148), (0x148, 0x0019, 0x220), (0x220, ACS, 0x300), (0x300, 0x0018, 0)), 0x1D),
        (config((0x100, ACS, 0), control=0), 0),
        (config((0x100, 0x0001, 0x140), (0x140, 0x0019, 0)), None),
        (config((0x100, 0x0001, 0x140), (0x140, 0x0019, 0x100)), None),  # a circle
        (config((0x100, 0x0001, 0xFFC)), None),  # the next stands beyond the end
        (config((0x100, 0x0001, 0x40), (0x40, ACS, 0)), None),  # and before the beginning
        (b"\xff" * 4096, None),  # a device that does not answer
        (bytes(256), None),  # conventional PCI
        (bytes(64), None),
        (b"", None),
    ],
    ids=["first", "third", "off", "none", "circle", "beyond", "before", "dead", "pci", "cut", "empty"],
)
def test_the_control_register_is_found_in_the_list_of_capabilities(space: bytes, expected: int | None):
    assert acs_control(space) == expected


def test_part_that_all_users_can_read_is_recognized_as_truncated():
    assert (is_cut_off(bytes(64)), is_cut_off(bytes(256)), is_cut_off(bytes(4096))) == (True, False, False)


def test_control_register_is_described_in_the_words_of_lspci():
    assert acs_words(0x1D) == "SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+"
    assert acs_words(0) == "nothing"
    assert not 0x11 & REDIRECT  # source validation and upstream forwarding do not redirect peers
