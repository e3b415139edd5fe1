"""GPUs and NICs on the PCI bus, and the bridges above them, as /sys shows them.

    /sys/bus/pci/devices/0000:1b:00.0 -> ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0
    /sys/class/infiniband/mlx5_0   -> ../../devices/pci0000:15/0000:15:01.0/…/0000:1a:00.0/infiniband/mlx5_0
    /sys/class/net/eno1            -> ../../devices/pci0000:00/0000:00:1c.0/0000:02:00.0/net/eno1
    /sys/class/net/bond0           -> ../../devices/virtual/net/bond0         has no PCI device of its own
    /sys/bus/pci/devices/0000:1a:00.0/{numa_node: 0, local_cpulist: 0-31,64-95, max_link_width: 16}

Everything is read through the probe's context. Nothing is raised: an unreadable file counts as missing.
"""

import re
from collections.abc import Iterator
from typing import Literal

from ddp_doctor.facts.node.topology import PciDevice
from ddp_doctor.knowledge.network.nccl_hca import natural
from ddp_doctor.model.context import Context
from ddp_doctor.parse.pci import is_bus_id, read_path
from ddp_doctor.probing.host_gpus import PCI
from ddp_doctor.probing.kernel_files import end_of, first_line, names_in, target_of

RDMA = "/sys/class/infiniband"
NET = "/sys/class/net"


def gpu_device(ctx: Context, column: str, bus_id: str) -> PciDevice | None:
    """Return the GPU at an address, or None if /sys hides it, as in some containers and virtual machines."""
    return _device(ctx, f"{PCI}/{bus_id}", column, "gpu")


def rdma_devices(ctx: Context) -> dict[str, PciDevice]:
    """Return the RDMA devices by name ("mlx5_0"), with the column names that nvidia-smi gives them: NIC0, NIC1, …"""
    found: dict[str, PciDevice] = {}
    for name in sorted(names_in(ctx, RDMA), key=natural):
        device = _device(ctx, f"{RDMA}/{name}", f"NIC{len(found)}", "nic")
        if device is not None:
            found[name] = device
    return found


def net_devices(ctx: Context) -> Iterator[PciDevice]:
    """Yield the network interfaces of PCI devices, RDMA or not."""
    for name in sorted(names_in(ctx, NET), key=natural):
        device = _device(ctx, f"{NET}/{name}", name, "net")
        if device is not None:
            yield device


def near_cpus(ctx: Context, bus_id: str) -> str | None:
    """Return all CPUs of the device's NUMA node, even those that this process may not use."""
    return first_line(ctx, f"{PCI}/{bus_id}/local_cpulist") or None


def bridges_above(ctx: Context, bus_id: str) -> tuple[str, ...]:
    """Return the bridges above a device, the root port first; empty if the kernel does not show them."""
    place = _place(ctx, f"{PCI}/{bus_id}")
    return place[2] if place and place[0] == bus_id else ()


def device_of(ctx: Context, link: str) -> str | None:
    """Return the PCI device that a link in /sys points to, such as /sys/class/infiniband/mlx5_0/device."""
    name = end_of(ctx, link)
    return name if name and is_bus_id(name) else None


def _place(ctx: Context, link: str) -> tuple[str, str, tuple[str, ...]] | None:
    target = target_of(ctx, link)
    return read_path(target) if target is not None else None


def _device(ctx: Context, link: str, name: str, kind: Literal["gpu", "nic", "net"]) -> PciDevice | None:
    place = _place(ctx, link)
    if place is None:
        return None
    bus_id, root, bridges = place
    node, width = (_number(first_line(ctx, f"{PCI}/{bus_id}/{file}")) for file in ("numa_node", "max_link_width"))
    return PciDevice(
        bus_id=bus_id,
        name=name,
        kind=kind,
        root=root,
        bridges=bridges,
        numa_node=node,
        link_speed=first_line(ctx, f"{PCI}/{bus_id}/max_link_speed"),
        link_width=width,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d{1,9}", text) else None
