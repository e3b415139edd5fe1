"""The PCIe bridges between a device and its host bridge, as the kernel's folders nest them.

    /sys/bus/pci/devices/0000:1b:00.0
        -> ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1b:00.0

The root port 0000:15:01.0 comes first, then a switch: its upstream port 0000:16:00.0 and the downstream
port 0000:17:01.0 that the device hangs on.
"""

import re

from ddp_doctor.model.context import Context

PCI = "/sys/bus/pci/devices"
_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def bridges_above(ctx: Context, bus_id: str) -> tuple[str, ...]:
    """The bridges above a device, the root port first; empty where the kernel does not show them."""
    try:
        target = ctx.readlink(f"{PCI}/{bus_id}")
    except OSError:
        return ()
    names = [name for name in target.split("/") if _BUS.fullmatch(name)]
    return tuple(names[:-1]) if names and names[-1] == bus_id else ()


def device_of(ctx: Context, link: str) -> str | None:
    """The PCI device that a link of /sys, as /sys/class/infiniband/mlx5_0/device, points to."""
    try:
        name = ctx.readlink(link).rpartition("/")[2]
    except OSError:
        return None
    return name if _BUS.fullmatch(name) else None
