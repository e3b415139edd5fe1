"""The NVIDIA GPUs that the kernel shows, whatever the driver says, and whether they are ours.

    /sys/bus/pci/devices/0000:61:00.0/vendor   0x10de
    /sys/bus/pci/devices/0000:61:00.0/class    0x030200    display class: 0x0300 VGA, 0x0302 3D
    /sys/bus/pci/devices/0000:61:00.0/driver   -> ../../../../bus/pci/drivers/nvidia
    /sys/bus/pci/devices/0000:61:00.4/physfn   -> ../0000:61:00.0    a virtual function of a vGPU host
    /dev/nvidia-nvswitchctl                    the control device of NVSwitches
    /proc/2201/comm                            nv-fabricmanage
    /proc/1/cgroup                             0::/kubepods/besteffort/pod3c0f…

Read through the probe's context; nothing is raised, what cannot be read does not exist.
"""

import re

from ddp_doctor.facts.node.gpus import PciGpu
from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import end_of, first_line, names_in, target_of, text_of

PCI = "/sys/bus/pci/devices"
#: The device node by which the fabric manager drives NVSwitches, and its process ("comm" is cut at 15).
NVSWITCHES = "nvidia-nvswitchctl"
FABRIC_MANAGER = "nv-fabricmanage"
CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
CONTAINER_CGROUP = re.compile(r"docker|kubepods|containerd|libpod|crio|\blxc\b|machine\.slice")


def pci_gpus(ctx: Context) -> tuple[PciGpu, ...] | None:
    """The NVIDIA GPUs on the bus; None where the bus cannot be read."""
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
    """The names in /dev that matter: nvidia0, nvidiactl, …; kfd is AMD's."""
    names = names_in(ctx, "/dev")
    return tuple(name for name in names if name.startswith("nvidia") or name == "kfd")


def fabric_manager_runs(ctx: Context, nodes: tuple[str, ...]) -> bool | None:
    """Whether the process of NVIDIA's fabric manager is there; None where that cannot be seen, or matters not.

    A container shows its own processes only, and a /proc mounted with hidepid only the user's processes.
    """
    if NVSWITCHES not in nodes or in_container(ctx) or first_line(ctx, "/proc/1/comm") is None:
        return None
    try:
        pids = [name for name in ctx.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    return any((first_line(ctx, f"/proc/{pid}/comm") or "").startswith(FABRIC_MANAGER) for pid in pids)


def may_have_gpus(ctx: Context) -> bool:
    """Whether it is worth asking a driver: a GPU on the bus, in /dev, or lent by Windows (WSL 2: /dev/dxg)."""
    found = pci_gpus(ctx)
    if found is None or not all(gpu.passed_through for gpu in found):
        return True
    return any(name.startswith("nvidia") or name == "dxg" for name in names_in(ctx, "/dev"))


def gpu_is_due(ctx: Context) -> bool:
    """Whether this machine, or what a container was given of it, has a GPU that should answer."""
    found = pci_gpus(ctx)
    if found is None or in_container(ctx):
        return gpu_is_given(ctx) or found is None
    return gpu_is_given(ctx) or any(not gpu.passed_through for gpu in found)


def gpu_is_given(ctx: Context) -> bool:
    """Whether there is a device node of a GPU, as /dev/nvidia0; only a driver that works makes one."""
    return any(name[6:].isdecimal() for name in device_nodes(ctx))


def in_container(ctx: Context) -> bool:
    """Whether this process lives in a container, as far as it shows; a virtual machine is none."""
    if any(ctx.env.get(name) for name in CONTAINER_VARIABLES):
        return True
    if any(first_line(ctx, path) is not None for path in CONTAINER_FILES):
        return True
    return CONTAINER_CGROUP.search(text_of(ctx, "/proc/1/cgroup") or "") is not None
