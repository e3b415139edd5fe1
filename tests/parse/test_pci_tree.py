"""Places on the PCI bus: what nvidia-smi calls the way between two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.facts.node.topology import PciDevice
from ddp_doctor.knowledge.topology import link_codes as codes
from ddp_doctor.parse.pci import link_code, read_path

#: A switch with two devices, and a second switch below it, as in /sys.
PORT, UP = "0000:15:01.0", "0000:16:00.0"


def device(bus_id: str, *bridges: str, root: str = "pci0000:15", numa: int | None = 0) -> PciDevice:
    return PciDevice(bus_id=bus_id, name=bus_id, kind="gpu", root=root, bridges=bridges, numa_node=numa)


GPU = device("0000:1b:00.0", PORT, UP, "0000:17:00.0")


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (device("0000:1c:00.0", PORT, UP, "0000:17:01.0"), "PIX"),  # the other port of the switch
        (device("0000:1b:00.1", PORT, UP, "0000:17:00.0"), "PIX"),  # another function of the card
        (device("0000:1f:00.0", PORT, UP, "0000:17:02.0", "0000:1d:00.0", "0000:1e:00.0"), "PXB"),
        (device("0000:22:00.0", "0000:15:02.0"), "PHB"),  # another root port
        (device("0000:22:00.0"), "PHB"),  # on the root bus itself
        (device("0000:30:00.0", "0000:29:01.0", root="pci0000:29"), "NODE"),
        (device("0000:90:00.0", "0000:89:01.0", root="pci0000:89", numa=1), "SYS"),
        (device("0000:90:00.0", "0000:89:01.0", root="pci0000:89", numa=None), "SYS"),
    ],
)
def test_path_of_a_gpu_behind_a_switch_is_read(other: PciDevice, code: str) -> None:
    assert link_code(GPU, other) == link_code(other, GPU) == code


def test_devices_without_a_numa_node_are_near_one_another_on_a_flat_bus() -> None:
    one, two = device("0000:00:1b.0", numa=-1), device("0000:00:1c.0", numa=-1)
    assert link_code(one, two) == "PHB"


@pytest.mark.parametrize(
    ("link", "place"),
    [
        (
            "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1B:00.0",
            ("0000:1b:00.0", "pci0000:15", (PORT, UP, "0000:17:00.0")),
        ),
        (
            "../../devices/pci0000:15/0000:15:01.0/0000:1a:00.0/infiniband/mlx5_0",
            ("0000:1a:00.0", "pci0000:15", (PORT,)),
        ),
        (
            "../../../devices/LNXSYSTM:00/device:07/VMBUS:01/47505500-0001/pci0001:00/0001:00:00.0",
            ("0001:00:00.0", "pci0001:00", ()),
        ),
        (
            "../../devices/pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0",
            ("10000:01:00.0", "pci10000:00", ("10000:00:02.0",)),
        ),
        ("../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0", ("0000:00:03.0", "pci0000:00", ())),
        ("../../devices/virtual/net/bond0", None),
        ("../../devices/pci0000:00", None),
        ("", None),
    ],
)
def test_links_of_sys_are_read(link: str, place: object) -> None:
    assert read_path(link) == place


bridges = st.lists(st.integers(0, 3).map(lambda at: f"0000:{at:02x}:00.0"), max_size=6).map(tuple)
places = st.builds(
    PciDevice,
    bus_id=st.just("0000:ff:00.0"),
    name=st.just("GPU0"),
    kind=st.just("gpu"),
    root=st.sampled_from(["pci0000:00", "pci0000:80"]),
    bridges=bridges,
    numa_node=st.sampled_from([None, -1, 0, 1]),
)


@given(places, places)
def test_any_two_places_have_a_known_code_both_ways(one: PciDevice, two: PciDevice) -> None:
    code = link_code(one, two)
    assert link_code(two, one) == code
    assert code in {entry.code for entry in codes.LINK_CODES}
    if one.root != two.root:
        assert codes.link_code(code).nccl_path in {"PHB", "SYS"}
