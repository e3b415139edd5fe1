"""The pcie check: the probe on a tree in place of /sys, and its rules on what it saw."""

import os
import time
from pathlib import Path

import pytest

from ddp_doctor.checks.node.pcie import pcie_tree, probe
from ddp_doctor.model.fact import Absent
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.parse.test_pci_config import ACS, config

ROOT, UP = "0000:15:01.0", "0000:16:00.0"
PORTS = ("0000:17:00.0", "0000:17:01.0", "0000:17:02.0")
GPUS, NIC = ("0000:1b:00.0", "0000:1c:00.0"), "0000:1d:00.0"


class Machine:
    """A tree in place of /: one switch with two GPUs and a NIC, as the kernel nests them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.below = root / "sys/devices/pci0000:15"
        self.add(ROOT, "0x060400", "0x8086:0x352a", acs=0x1D)
        self.add(f"{ROOT}/{UP}", "0x060400", "0x1000:0xc030")
        for port, bus in zip(PORTS, (*GPUS, NIC), strict=True):
            self.add(f"{ROOT}/{UP}/{port}", "0x060400", "0x1000:0xc030", acs=0x1D)
            display = bus in GPUS
            self.add(
                f"{ROOT}/{UP}/{port}/{bus}",
                "0x030200" if display else "0x020700",
                "0x10de:0x2330" if display else "0x15b3:0x1021",
            )
        self.link("sys/class/infiniband/mlx5_0/device", f"../../../devices/pci0000:15/{ROOT}/{UP}/{PORTS[2]}/{NIC}")
        self.file("sys/kernel/iommu_groups/13/type", "DMA-FQ\n")
        self.link(f"sys/bus/pci/devices/{GPUS[0]}/iommu_group", f"{root}/sys/kernel/iommu_groups/13")
        self.file("sys/bus/pci/slots/5/address", f"{GPUS[0].partition('.')[0]}\n")
        self.file("proc/cmdline", "BOOT_IMAGE=/vmlinuz quiet amd_iommu=on iommu=soft pci=realloc pci=noacs\n")
        self.file("proc/cpuinfo", "vendor_id\t: GenuineIntel\nflags\t\t: fpu vme\n")

    def add(self, path: str, kind: str, ids: str, acs: int | None = None) -> None:
        vendor, device = ids.split(":")
        speed = "2.5 GT/s PCIe" if vendor == "0x10de" else "32.0 GT/s PCIe"  # idle GPUs only
        folder = self.below / path
        folder.mkdir(parents=True)
        files = {"class": kind, "vendor": vendor, "device": device, "current_link_width": "16"}
        files |= {"max_link_width": "16", "current_link_speed": speed, "max_link_speed": "32.0 GT/s PCIe"}
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")
        space = (
            config((0x100, 0x0001, 0x148), (0x148, 0x0019, 0)) if acs is None else config((0x100, ACS, 0), control=acs)
        )
        (folder / "config").write_bytes(space)
        self.link(f"sys/bus/pci/devices/{path.rpartition('/')[2]}", f"../../../devices/pci0000:15/{path}")

    def link(self, path: str, target: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def file(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def context(self) -> LiveContext:
        return LiveContext({}, time.monotonic() + 60, root=str(self.root))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- the probe ------------------------------------------------------------------------------------------


def test_the_probe_reads_the_tree_above_gpus_and_nics(machine: Machine):
    fact = probe(machine.context())
    assert [one.bus_id for one in fact.endpoints()] == [*GPUS, NIC]
    gpu, nic, port = fact.device(GPUS[0]), fact.device(NIC), fact.device(PORTS[1])
    assert gpu is not None
    assert nic is not None
    assert port is not None
    assert (gpu.model, gpu.above, gpu.iommu, gpu.slot) == ("10de:2330", (ROOT, UP, PORTS[0]), "DMA-FQ", "5")
    assert (gpu.width, gpu.width_max, gpu.speed_gt_per_s, gpu.speed_max_gt_per_s) == (16, 16, 2.5, 32.0)
    assert (nic.name, nic.kind, nic.iommu) == ("mlx5_0", "nic", None)
    assert (port.acs_control, port.redirects) == (0x1D, True)
    assert fact.device(UP) is not None
    assert (fact.acs_problem, fact.virtual) == (None, None)
    assert fact.iommu_options == ("amd_iommu=on", "iommu=soft", "pci=noacs")


def test_user_who_can_read_only_64_bytes_gets_the_reason(machine: Machine):
    for bus in (ROOT, UP, *PORTS):
        (machine.root / f"sys/bus/pci/devices/{bus}/config").write_bytes(bytes(64))
    fact = probe(machine.context())
    assert fact.acs_problem == "the kernel shows the configuration of PCIe bridges to root of the host only"
    assert [one.acs_control for one in fact.devices] == [None] * 8


def test_machine_without_gpu_and_rdma_device_is_absent():
    with pytest.raises(Absent, match="no NVIDIA GPU and no RDMA device"):
        probe(FakeContext(files={"/sys/bus/pci/devices/0000:00:02.0/vendor": "0x1a03\n"}))


def test_this_machine_is_read():
    try:
        fact = probe(LiveContext(os.environ, time.monotonic() + 60))
    except Absent:
        return
    assert fact.endpoints()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/cpuinfo": "flags\t: fpu hypervisor lahf_lm\n"}, "the CPU has the flag hypervisor"),
        ({"/sys/class/dmi/id/product_name": "Google Compute Engine\n"}, "Google Compute Engine"),
        ({"/proc/cpuinfo": "flags\t: fpu\n", "/sys/class/dmi/id/sys_vendor": "Supermicro\n"}, None),
        ({"/sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "/sys/class/dmi/id/product_name": "p5.metal\n"}, None),
    ],
)
def test_virtual_machines_are_distinguished_from_bare_metal(files: dict[str, str | OSError], expected: str | None):
    assert pcie_tree.virtual(FakeContext(files=files)) == expected


def test_link_of_a_sleeping_device_is_unknown():
    folder = "/sys/bus/pci/devices/0000:01:00.0"
    files: dict[str, str | OSError] = {
        f"{folder}/current_link_width": "63\n",
        f"{folder}/max_link_width": "0\n",
        f"{folder}/current_link_speed": "Unknown\n",
    }
    device = pcie_tree.read_device(FakeContext(files=files), "0000:01:00.0", "gpu", {})
    assert (device.width, device.width_max, device.speed_gt_per_s) == (None, None, None)
