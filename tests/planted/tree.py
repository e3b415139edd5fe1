"""The /sys of a machine of tests/machines on disk, as NCCL reads it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.machines.board import CPUS
from tests.machines.memory import Link
from tests.machines.whole import Whole

#: Folders of the real /sys that are put into a planted one: the host's own interfaces, CPUs and cgroups.
REAL = ("class/net", "devices/virtual", "devices/system/cpu", "fs/cgroup")
#: A CPU family of at least this value is reported in two parts, which NCCL combines differently from Linux.
_EXTENDED = 15


def plant(machine: Whole, root: Path) -> None:
    for path, entry in machine.board.tree.walk():
        name = path.removeprefix("/sys/")
        if name == path or name.startswith(REAL):
            continue
        at = root / name
        at.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            at.symlink_to(entry.target)
        elif isinstance(entry, bytes):
            at.write_bytes(entry)
    for device in sorted((root / "bus/pci/devices").iterdir()):
        _complete(root, device.name, device.resolve())
    for node, cpus in enumerate(CPUS):
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
        (folder / "cpumap").write_text(f"{_mask(cpus)}\n")
    for name in REAL:
        (root / name).mkdir(parents=True, exist_ok=True)


def settings(machine: Whole, file: Path) -> dict[str, str]:
    """Return settings of a machine that are not in /sys: its CPUs, and whether dma-buf can export GPU memory.

    NCCL reads the CPUs by an instruction unless a ``file`` has them.
    """
    told = dict(re.findall(r"(?m)^(.*?)\s*: (.*)$", machine.board.tree.read("/proc/cpuinfo")))
    family = int(told.get("cpu family", 0))
    family = family if family < _EXTENDED else _EXTENDED + (family - _EXTENDED << 4)
    arch, vendor = ("x86_64", told["vendor_id"]) if "vendor_id" in told else ("arm64", "ARM")
    kind = f'arch="{arch}" vendor="{vendor}" familyid="{family}" modelid="{told.get("model", 0)}"'
    cpus = (f'<cpu numaid="{node}" {kind}/>' for node in range(len(CPUS)))
    file.write_text("\n".join(('<system version="1">', *cpus, "</system>\n")))
    is_open = "Open Kernel Module" in machine.board.tree.read("/proc/driver/nvidia/version")
    return {"NCCL_TOPO_FILE": str(file), **({"PLANTED_DMABUF": "1"} if is_open else {})}


def _complete(root: Path, bus_id: str, device: Path) -> None:
    """Add the files that NCCL reads in addition to ddp-doctor: subsystem, CPUs as a mask, and the bus by name."""
    for name in ("vendor", "device"):
        (device / f"subsystem_{name}").write_text((device / name).read_text())
    (device / "subsystem").symlink_to(os.path.relpath(root / "bus/pci", device))
    (device / "local_cpus").write_text(f"{_mask((device / 'local_cpulist').read_text().strip())}\n")
    bus = bus_id.rpartition(":")[0]
    folder, link = device.parent / "pci_bus" / bus, root / "class/pci_bus" / bus
    folder.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(folder, link.parent))


def _mask(cpus: str) -> str:
    """``0-31,64-95`` as the kernel's bitmap ``00000000,ffffffff,00000000,ffffffff``."""
    number = 0
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        for cpu in range(int(first), int(last or first) + 1):
            number |= 1 << cpu
    text = f"{number:032x}"
    return ",".join(text[at : at + 8] for at in range(0, 32, 8))
