"""The NVIDIA GPUs that the kernel shows, whatever the driver reports, and whether this process may use them.

    /sys/bus/pci/devices/0000:61:00.0/vendor   0x10de
    /sys/bus/pci/devices/0000:61:00.0/class    0x030200    display class: 0x0300 VGA, 0x0302 3D
    /sys/bus/pci/devices/0000:61:00.0/driver   -> ../../../../bus/pci/drivers/nvidia
    /sys/bus/pci/devices/0000:61:00.4/physfn   -> ../0000:61:00.0    a virtual function of a vGPU host
    /dev/nvidia-nvswitchctl                    the control device of NVSwitches
    /proc/2201/comm                            nv-fabricmanage
    /proc/1/cgroup                             0::/kubepods/besteffort/pod3c0f…

Everything is read through the probe's context. Nothing is raised: an unreadable file counts as missing.
"""

import re

from ddp_doctor.facts.node.gpus import PciGpu
from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import end_of, first_line, names_in, target_of, text_of

PCI = "/sys/bus/pci/devices"
#: The device node with which the fabric manager controls NVSwitches, and its process ("comm" is cut at 15).
NVSWITCHES = "nvidia-nvswitchctl"
FABRIC_MANAGER = "nv-fabricmanage"
CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
CONTAINER_CGROUP = re.compile(r"docker|kubepods|containerd|libpod|crio|\blxc\b|machine\.slice")


def pci_gpus(ctx: Context) -> tuple[PciGpu, ...] | None:
    """Return the NVIDIA GPUs on the PCI bus, or None if the bus cannot be read."""
    try:
        bus_ids = ctx.listdir(PCI)
    except OSError:
        return None
    nvidia = [bus_id for bus_id in bus_ids if _is_nvidia_gpu(ctx, bus_id)]
    return tuple(PciGpu(bus_id=bus_id, driver=end_of(ctx, f"{PCI}/{bus_id}/driver") or None) for bus_id in nvidia)


def _is_nvidia_gpu(ctx: Context, bus_id: str) -> bool:
    if first_line(ctx, f"{PCI}/{bus_id}/vendor") != "0x10de":
        return False
    display = (first_line(ctx, f"{PCI}/{bus_id}/class") or "").startswith("0x03")
    return display and target_of(ctx, f"{PCI}/{bus_id}/physfn") is None


def device_nodes(ctx: Context) -> tuple[str, ...]:
    """Return the names of GPU nodes in /dev: nvidia0, nvidiactl, …, and AMD's kfd."""
    names = names_in(ctx, "/dev")
    return tuple(name for name in names if name.startswith("nvidia") or name == "kfd")


def fabric_manager_runs(ctx: Context, nodes: tuple[str, ...]) -> bool | None:
    """Return True if NVIDIA's fabric manager is running, or None if unknown or not needed.

    A container shows only its own processes, and a /proc mounted with hidepid only the user's.
    """
    if NVSWITCHES not in nodes or in_container(ctx) or first_line(ctx, "/proc/1/comm") is None:
        return None
    try:
        pids = [name for name in ctx.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    return any((first_line(ctx, f"/proc/{pid}/comm") or "").startswith(FABRIC_MANAGER) for pid in pids)


def may_have_gpus(ctx: Context) -> bool:
    """Return True if a driver may answer: a GPU on the bus, in /dev, or lent by Windows (WSL 2: /dev/dxg)."""
    found = pci_gpus(ctx)
    if found is None or not all(gpu.passed_through for gpu in found):
        return True
    return any(name.startswith("nvidia") or name == "dxg" for name in names_in(ctx, "/dev"))


def gpu_is_due(ctx: Context) -> bool:
    """Return True if this machine, or the part of it that a container was given, has a GPU that should answer."""
    found = pci_gpus(ctx)
    if found is None or in_container(ctx):
        return gpu_is_given(ctx) or found is None
    return gpu_is_given(ctx) or any(not gpu.passed_through for gpu in found)


def gpu_is_given(ctx: Context) -> bool:
    """Return True if a GPU has a device node, such as /dev/nvidia0; only a working driver creates one."""
    return any(name[6:].isdecimal() for name in device_nodes(ctx))


def in_container(ctx: Context) -> bool:
    """Return True if this process is visibly in a container; a virtual machine is not one."""
    if any(ctx.env.get(name) for name in CONTAINER_VARIABLES):
        return True
    if any(first_line(ctx, path) is not None for path in CONTAINER_FILES):
        return True
    return CONTAINER_CGROUP.search(text_of(ctx, "/proc/1/cgroup") or "") is not None
