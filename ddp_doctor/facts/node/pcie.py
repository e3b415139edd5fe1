"""The PCIe tree above GPUs and RDMA devices: links, access control, IOMMU.

/sys/bus/pci/devices/0000:1b:00.0/current_link_width   16
/sys/bus/pci/devices/0000:1b:00.0/max_link_speed       32.0 GT/s PCIe
/sys/bus/pci/devices/0000:1b:00.0/iommu_group          -> ../../../../kernel/iommu_groups/13
/sys/kernel/iommu_groups/13/type                       DMA-FQ    translated; identity is passed through
/sys/bus/pci/slots/5/address                           0000:1b:00
"""

from itertools import combinations
from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

DeviceKind = Literal["gpu", "nic", "bridge"]


#: Bits of the control register that send peer traffic up to the root, according to the kernel's own peer-to-peer code
#: (drivers/pci/p2pdma.c, pci_bridge_has_acs_redir).
_REQUEST_REDIRECT, _COMPLETION_REDIRECT, _EGRESS_CONTROL = 0x0004, 0x0008, 0x0020
REDIRECT = _REQUEST_REDIRECT | _COMPLETION_REDIRECT | _EGRESS_CONTROL


class PcieDevice(Frozen):
    """A device and its upstream link. None: not reported by the kernel."""

    bus_id: str
    kind: DeviceKind
    name: str = ""  # of an RDMA device: mlx5_0
    model: str = ""  # vendor and device: "10de:2330"
    above: tuple[str, ...] = ()  # the bridges up to the root port, which is listed first
    width: int | None = None
    width_max: int | None = None
    speed_gt_per_s: float | None = None
    speed_max_gt_per_s: float | None = None
    acs_control: int | None = None  # of bridges
    iommu: str | None = None  # type of its IOMMU group: "DMA-FQ", "identity"
    slot: str | None = None

    @property
    def redirects(self) -> bool:
        """Return True if this bridge sends peer traffic up to the root."""
        return bool((self.acs_control or 0) & REDIRECT)


class PcieFact(Fact):
    """The part of one node's PCIe tree with GPUs and RDMA devices."""

    KIND: ClassVar[str] = "pcie/1"

    devices: tuple[PcieDevice, ...] = ()
    virtual: str | None = None  # the evidence that this is a virtual machine
    iommu_options: tuple[str, ...] = ()  # of the kernel's command line
    acs_problem: str | None = None  # why access control could not be read
    in_container: bool = False
    passed_through: tuple[str, ...] = Field(default=())  # GPUs reserved for virtual machines

    def device(self, bus_id: str) -> PcieDevice | None:
        """Return the device with this bus id, or None."""
        return next((device for device in self.devices if device.bus_id == bus_id), None)

    def endpoints(self) -> list[PcieDevice]:
        """Return the GPUs and RDMA devices that are not reserved for virtual machines."""
        return [
            device for device in self.devices if device.kind != "bridge" and device.bus_id not in self.passed_through
        ]

    def neighbors(self) -> list[tuple[PcieDevice, PcieDevice, tuple[str, ...]]]:
        """Return the pairs of two GPUs, or of a GPU and an RDMA device, below one switch, and the ports between them.

        Pairs below different root ports are not included, because their traffic passes the CPU in any case.
        """
        found = []
        for first, second in combinations(self.endpoints(), 2):
            shared = shared_bridges(first.above, second.above)
            if shared and "gpu" in (first.kind, second.kind) and first.above != second.above:
                found.append((first, second, (*first.above[shared:], *second.above[shared:])))
        return found

    def redirecting(self, bridges: tuple[str, ...]) -> tuple[str, ...]:
        """Return the bridges that send peer traffic up to the root."""
        return tuple(device.bus_id for device in self.devices if device.bus_id in bridges and device.redirects)


def shared_bridges(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """Return the number of bridges that two devices share, from the root port down."""
    differ = (at for at, (left, right) in enumerate(zip(first, second, strict=False)) if left != right)
    return next(differ, min(len(first), len(second)))
