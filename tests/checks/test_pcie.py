"""The pcie check: the probe on a tree in place of /sys, and its rules on what it saw."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.node.pcie import CHECK, pcie_tree, probe
from ddp_doctor.checks.node.topology.formats.topo_matrix import parse_matrix
from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.facts.node.pcie import PcieDevice, PcieFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.model.fact import Absent, Fact
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.parse.test_pci_config import ACS, config
from tests.readings import collected, findings_of, replayed

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


def test_a_user_who_is_shown_64_bytes_gets_the_reason(machine: Machine):
    for bus in (ROOT, UP, *PORTS):
        (machine.root / f"sys/bus/pci/devices/{bus}/config").write_bytes(bytes(64))
    fact = probe(machine.context())
    assert fact.acs_problem == "the kernel shows the configuration of PCIe bridges to root of the host only"
    assert [one.acs_control for one in fact.devices] == [None] * 8


def test_without_gpu_and_rdma_device_there_is_nothing_to_read():
    with pytest.raises(Absent, match="no NVIDIA GPU and no RDMA device"):
        probe(FakeContext(files={"/sys/bus/pci/devices/0000:00:02.0/vendor": "0x1a03\n"}))


def test_this_very_machine_is_read():
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
def test_virtual_machines_are_told_from_metal(files: dict[str, str | OSError], expected: str | None):
    assert pcie_tree.virtual(FakeContext(files=files)) == expected


def test_the_link_of_a_device_that_sleeps_is_not_known():
    folder = "/sys/bus/pci/devices/0000:01:00.0"
    files: dict[str, str | OSError] = {
        f"{folder}/current_link_width": "63\n",
        f"{folder}/max_link_width": "0\n",
        f"{folder}/current_link_speed": "Unknown\n",
    }
    device = pcie_tree.read_device(FakeContext(files=files), "0000:01:00.0", "gpu", {})
    assert (device.width, device.width_max, device.speed_gt_per_s) == (None, None, None)


# --- the rules ------------------------------------------------------------------------------------------


def judge(*facts: Fact, nodes: int = 1) -> list[Finding]:
    readings = tuple(collected(one.KIND.partition("/")[0], one) for one in facts)
    world = World(nnodes=nodes, backend="nccl", nodes=(Node(hostname="node0"),))
    return findings_of(CHECK, replayed(Recording(world=world, readings=readings)))


def verdicts(*facts: Fact, nodes: int = 1) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity.value) for finding in judge(*facts, nodes=nodes)]


def acs(fact: PcieFact, control: int | None, *buses: str) -> PcieFact:
    """The same tree with another control register on some bridges."""
    changed = tuple(
        one.model_copy(update={"acs_control": control, "iommu": None}) if one.bus_id in buses else one
        for one in fact.devices
    )
    return fact.model_copy(update={"devices": changed})


@pytest.fixture
def tree(machine: Machine) -> PcieFact:
    return probe(machine.context())


GPUS_BY_NVML = GpusFact(gpus=tuple(Gpu(index=index, bus_id=bus) for index, bus in enumerate(GPUS)), used=(0, 1))
NVLINK = TopologyFact(**dict(parse_matrix("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n")))


def test_redirection_between_gpus_of_one_switch_names_exactly_its_ports(tree: PcieFact):
    (finding,) = judge(tree, GPUS_BY_NVML)
    assert (finding.code, finding.severity.value) == ("DD420", "warning")
    assert finding.title.endswith(
        "routes traffic between these devices through the CPU:"
        " GPU 0 (0000:1b:00.0), GPU 1 (0000:1c:00.0) and mlx5_0 (0000:1d:00.0)"
    )
    assert finding.remedies[0].commands == tuple(f"sudo setpci -s {bus} ECAP_ACS+0x6.w=0000" for bus in PORTS)
    assert f"sudo setpci -s {PORTS[0]} ECAP_ACS+0x6.w=001d" in finding.remedies[0].undo


def test_gpus_with_nvlink_leave_the_nic_alone_to_suffer_and_only_between_nodes(tree: PcieFact):
    assert verdicts(tree, GPUS_BY_NVML, NVLINK) == [("DD420", "info")]
    assert verdicts(tree, GPUS_BY_NVML, NVLINK, nodes=2) == [("DD420", "warning")]


def test_gpus_of_other_jobs_and_of_virtual_machines_do_not_count(tree: PcieFact):
    without_nic = tree.model_copy(update={"devices": tuple(d for d in tree.devices if d.kind != "nic")})
    assert verdicts(without_nic, GPUS_BY_NVML.model_copy(update={"used": (1,)})) == []
    assert verdicts(without_nic.model_copy(update={"passed_through": GPUS[:1]})) == []


def endpoint(bus: str, width: int, port_max: int = 16, **fields: Any) -> tuple[PcieDevice, PcieDevice]:
    port = f"0000:00:{bus[5:7]}.0"
    speed: dict[str, Any] = {"speed_gt_per_s": 16.0, "speed_max_gt_per_s": 16.0}
    device: dict[str, Any] = {
        "bus_id": bus,
        "kind": "gpu",
        "model": "10de:2204",
        "above": (port,),
        "width": width,
        "width_max": 16,
    }
    return (
        PcieDevice(**{**device, **speed, **fields}),
        PcieDevice(bus_id=port, kind="bridge", width=width, width_max=port_max, **speed),
    )


def tree_of(*pairs: tuple[PcieDevice, PcieDevice]) -> PcieFact:
    return PcieFact(devices=tuple(one for pair in pairs for one in pair))


A, B, C = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (tree_of(endpoint(A, 8), endpoint(B, 16), endpoint(C, 16)), [("DD422", "warning")]),
        (tree_of(endpoint(A, 8), endpoint(B, 16)), [("DD422", "warning")]),
        (tree_of(endpoint(A, 8), endpoint(B, 8)), []),  # wired so
        (tree_of(endpoint(A, 8), endpoint(B, 8), endpoint(C, 16)), []),  # and so are these two
        (tree_of(endpoint(A, 8)), [("DD422", "info")]),
        (tree_of(endpoint(A, 8, 8), endpoint(B, 16)), []),  # the slot has no more lanes
        (tree_of(endpoint(A, 16, speed_gt_per_s=2.5), endpoint(B, 16)), []),  # idle
        (tree_of(endpoint(A, 8, model="10de:1f82"), endpoint(B, 16)), [("DD422", "info")]),
        (tree_of(endpoint(A, 16, kind="nic", speed_gt_per_s=8.0), endpoint(B, 16, kind="nic")), [("DD422", "warning")]),
        (tree_of(endpoint(A, 8, speed_max_gt_per_s=None), endpoint(B, 16)), []),  # not all is told
    ],
)
def test_a_narrow_link_is_judged_by_its_ends_and_its_peers(fact: PcieFact, expected: list[tuple[str, str]]):
    assert verdicts(fact) == expected
