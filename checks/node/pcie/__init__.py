r"""The PCIe tree above GPUs and RDMA devices: narrow links, access control (ACS), IOMMU.

GPUs without NVLink, and NICs that read GPU memory, copy directly through the switches of the PCIe tree. With ACS
redirection every such packet goes up to the CPU and back down. This is slow, and on some machines packets never arrive,
so the first all-reduce hangs. A link with half of its lanes slows down every step. Raw input::

    /sys/bus/pci/devices/0000:17:01.0/config                4096 bytes; the ACS capability is in them
    /sys/bus/pci/devices/0000:1b:00.0/current_link_width    8
    /sys/bus/pci/devices/0000:1b:00.0/max_link_width        16
    /sys/kernel/iommu_groups/13/type                        DMA-FQ
    /proc/cmdline                                           … intel_iommu=on iommu=pt

In virtual machines, the hypervisor makes up the tree, and it is not checked. Idle GPUs reduce the speed of their link
on purpose, but never its width.
"""

from ddp_doctor.checks.node.pcie import pcie_tree, rules
from ddp_doctor.facts.node.pcie import PcieFact
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing import host_gpus, kernel
from ddp_doctor.probing.pci_devices import bridges_above


def probe(ctx: Context) -> PcieFact:
    """Read the tree. Raises Absent if there is neither a GPU nor an RDMA device."""
    gpus = host_gpus.pci_gpus(ctx) or ()
    nics = kernel.rdma_pci_devices(ctx)
    if not gpus and not nics:
        raise Absent("no NVIDIA GPU and no RDMA device found")
    ends = (*(gpu.bus_id for gpu in gpus), *nics)
    bridges = tuple(dict.fromkeys(bridge for bus in ends for bridge in bridges_above(ctx, bus)))
    slots = pcie_tree.slots(ctx)
    devices = (
        *(pcie_tree.read_device(ctx, gpu.bus_id, "gpu", slots) for gpu in gpus),
        *(pcie_tree.read_device(ctx, bus, "nic", slots, name) for bus, name in nics.items()),
        *(pcie_tree.read_device(ctx, bus, "bridge", slots) for bus in bridges),
    )
    return PcieFact(
        devices=devices,
        virtual=pcie_tree.virtual(ctx),
        iommu_options=pcie_tree.iommu_options(ctx),
        acs_problem=pcie_tree.acs_problem(ctx, bridges),
        in_container=host_gpus.in_container(ctx),
        passed_through=tuple(gpu.bus_id for gpu in gpus if gpu.passed_through),
    )


CHECK = Check(
    id="pcie",
    title="PCIe links, access control and IOMMU",
    where=Where.NODE,
    probe=probe,
    facts=(PcieFact,),
    rules=rules_in(rules),
    cost_s=0.1,
)
