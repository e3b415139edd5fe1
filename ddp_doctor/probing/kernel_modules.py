"""The NVIDIA modules that the kernel has loaded, and the driver's libraries that programs will load.

    /sys/module/nvidia/version            550.90.07
    /sys/module/nvidia_peermem/version    550.90.07
    /proc/driver/nvidia/version           NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May …
                                          NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.195.03
    /usr/lib/x86_64-linux-gnu/libcuda.so.1 -> libcuda.so.550.90.07
    /sys/class/infiniband/mlx5_0/device/driver -> ../../../../bus/pci/drivers/mlx5_core

Read through the probe's context; nothing is raised, what cannot be read does not exist.
"""

import re

from ddp_doctor.knowledge.gpu.gpudirect import PEERMEM_FILES, PEERMEM_MODULES
from ddp_doctor.model.context import Context
from ddp_doctor.probing.host_limits import rdma_devices
from ddp_doctor.probing.kernel_files import end_of, first_line
from ddp_doctor.probing.pci_devices import device_of

MODULES = (
    *("nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", *PEERMEM_MODULES, "gdrdrv", "nouveau"),
    *("mlx5_core", "ib_core"),
)
_INFINIBAND = "/sys/class/infiniband"
LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
#: Where distributions and container runtimes put the driver's libraries.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
)
_DRIVER = re.compile(r"(Open )?Kernel Module(?: for \S{1,20})?\s+(\d{1,4}(?:\.\d{1,4}){1,3})\b", re.ASCII)
_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,4}", re.ASCII)


def modules(ctx: Context) -> dict[str, str]:
    """The loaded modules that matter, with their version ("" where they have none)."""
    try:
        loaded = set(ctx.listdir("/sys/module"))
    except OSError:
        return {}
    return {
        name: (first_line(ctx, f"/sys/module/{name}/version") or "")[:40]
        for name in MODULES
        if name in loaded
    }


def driver(text: str | None) -> tuple[str | None, bool | None]:
    """The version of the loaded NVIDIA driver, and whether it is the open one, from /proc/driver/nvidia."""
    found = _DRIVER.search(text or "")
    return (found[2], found[1] is not None) if found else (None, None)


def peermem(ctx: Context, loaded: dict[str, str]) -> str | None:
    """The peer memory module, or the file by which NCCL finds one."""
    names = [name for name in PEERMEM_MODULES if name in loaded]
    return next(
        iter(names), next((path for path in PEERMEM_FILES if first_line(ctx, path) is not None), None)
    )


def libraries(ctx: Context) -> dict[str, str]:
    """The driver's libraries that a program would load: path of the link, and the version behind it."""
    found = {}
    for path in (f"{folder}/{name}.1" for folder in LIBRARY_FOLDERS for name in LIBRARIES):
        try:
            target = ctx.readlink(path).rpartition("/")[2]
        except OSError:
            continue
        version = target.partition(".so.")[2]
        if _VERSION.fullmatch(version) and version != "1":
            found[path] = version
    return found


def rdma_drivers(ctx: Context) -> dict[str, str]:
    """The RDMA devices with an active port, and their kernel drivers ("" where none is known)."""
    drivers = {}
    for name in rdma_devices(ctx):
        drivers[name] = end_of(ctx, f"{_INFINIBAND}/{name}/device/driver") or ""
    return drivers


def rdma_pci_devices(ctx: Context) -> dict[str, str]:
    """The PCI devices behind the RDMA devices, and their names; software devices have none."""
    try:
        names = ctx.listdir(_INFINIBAND)
    except OSError:
        return {}
    found = {name: device_of(ctx, f"{_INFINIBAND}/{name}/device") for name in names}
    return {bus: name for name, bus in found.items() if bus is not None}
