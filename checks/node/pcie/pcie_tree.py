"""The PCIe tree above GPUs and RDMA devices, read from /sys (facts/node/pcie.py shows the files).

Reads use the probe's context and never raise: a value that cannot be read is None.
"""

import re
from collections.abc import Iterable

from ddp_doctor.facts.node.pcie import DeviceKind, PcieDevice
from ddp_doctor.model.context import Context
from ddp_doctor.parse.pci import acs_control, is_cut_off
from ddp_doctor.probing.host_gpus import PCI
from ddp_doctor.probing.kernel_files import end_of, first_line, names_in, text_of
from ddp_doctor.probing.pci_devices import bridges_above

_WIDTHS = (1, 2, 4, 8, 12, 16, 32)  # a device without a link, or asleep, reports 0, 63 or 255
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
_OPTION = re.compile(r"(?:intel_iommu|amd_iommu|iommu|pci|iommu\.\w{1,20})=\S{1,80}")
_PCI_OPTIONS_OF_INTEREST = ("noacs", "disable_acs_redir", "config_acs", "pcie_acs_override")

#: Vendors and products of virtual machines, for CPUs without the flag (Arm).
_VIRTUAL = re.compile(
    r"QEMU|KVM|VMware|VirtualBox|Xen|Virtual Machine|Google Compute Engine|OpenStack|Alibaba Cloud|Bochs"
)


def read_device(ctx: Context, bus_id: str, kind: DeviceKind, slots: dict[str, str], name: str = "") -> PcieDevice:
    """Return a device with its link; a bridge with its access control if readable."""
    folder = f"{PCI}/{bus_id}"
    ids = (first_line(ctx, f"{folder}/{part}") or "" for part in ("vendor", "device"))
    group = end_of(ctx, f"{folder}/iommu_group")
    return PcieDevice(
        bus_id=bus_id,
        kind=kind,
        name=name,
        model=":".join(part.removeprefix("0x") for part in ids),
        above=bridges_above(ctx, bus_id),
        width=_width(first_line(ctx, f"{folder}/current_link_width")),
        width_max=_width(first_line(ctx, f"{folder}/max_link_width")),
        speed_gt_per_s=_speed(first_line(ctx, f"{folder}/current_link_speed")),
        speed_max_gt_per_s=_speed(first_line(ctx, f"{folder}/max_link_speed")),
        acs_control=acs_control(_config(ctx, bus_id)) if kind == "bridge" else None,
        iommu=first_line(ctx, f"/sys/kernel/iommu_groups/{group}/type") if group else None,
        slot=slots.get(bus_id.partition(".")[0]),
    )


def acs_problem(ctx: Context, bridges: Iterable[str]) -> str | None:
    """Return why access control cannot be read, or None if it can."""
    first = next(iter(bridges), None)
    if first is None or not is_cut_off(_config(ctx, first)):
        return None
    return "the kernel shows the configuration of PCIe bridges to root of the host only"


def slots(ctx: Context) -> dict[str, str]:
    """Return the machine's names of its slots, by PCI address without function."""
    names = names_in(ctx, "/sys/bus/pci/slots")
    addresses = {name: first_line(ctx, f"/sys/bus/pci/slots/{name}/address") for name in names}
    return {address: name for name, address in addresses.items() if address}


def virtual(ctx: Context) -> str | None:
    """Return the evidence that this is a virtual machine, or None."""
    for line in (text_of(ctx, "/proc/cpuinfo") or "").splitlines():
        if line.startswith("flags"):
            if " hypervisor" in line:
                return "the CPU has the flag hypervisor"
            break
    names = [first_line(ctx, f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name")]
    product = " ".join(names).strip()
    return product if _VIRTUAL.search(product) else None


def iommu_options(ctx: Context) -> tuple[str, ...]:
    """Return the kernel's boot options about IOMMU and access control."""
    options = (word for word in (text_of(ctx, "/proc/cmdline") or "").split() if _OPTION.fullmatch(word))
    return tuple(
        word
        for word in options
        if not word.startswith("pci=") or any(part in word for part in _PCI_OPTIONS_OF_INTEREST)
    )


def _config(ctx: Context, bus_id: str) -> bytes:
    try:
        return ctx.read_bytes(f"{PCI}/{bus_id}/config")
    except OSError:
        return b""


def _width(text: str | None) -> int | None:
    lanes = int(text) if text and re.fullmatch(r"\d{1,3}", text, re.ASCII) else 0
    return lanes if lanes in _WIDTHS else None


def _speed(text: str | None) -> float | None:
    found = _SPEED.match(text or "")
    return float(found[1]) if found else None
