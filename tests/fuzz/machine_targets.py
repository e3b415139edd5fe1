"""The parsers that read files and links of a machine, with what those hold, parted by form feeds, for seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ddp_doctor.checks.node.gpus import accelerators
from ddp_doctor.checks.node.kernel import kernel_log, processes_in_driver
from ddp_doctor.checks.node.pcie import pcie_tree
from ddp_doctor.checks.node.rdma import verbs_library
from ddp_doctor.checks.node.topology.formats import cpus
from ddp_doctor.model.context import Context
from ddp_doctor.probing import (
    host_gpus,
    host_limits,
    kernel,
    kernel_files,
    nccl_interface,
    pci_devices,
    rdma,
    setting_origins,
)
from tests.fuzz.target import NAMES, Target, machine


def _of(parses: Callable[[Context], object], *seeds: str) -> Target:
    return Target(parses, lambda text: parses(machine(text)), seeds)


def _with_settings(text: str) -> Context:
    return replace(machine(text), env={"HOME": "/root", "NCCL_DEBUG": "INFO"})


_PATH = "../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:61:00.0/infiniband/mlx5_0"
_CONF = "# c\nNCCL_SOCKET_IFNAME=eth0\nexport NCCL_DEBUG=INFO\n NCCL_IB_HCA = mlx5_0\nNCCL_P2P_LEVEL\nTOKEN=x\n"
_PORT = (
    "28.39.1002\f4: ACTIVE\f5: LinkUp\f400 Gb/sec (4X NDR)\fInfiniBand\ffe80:0000:0000:0000:0000:0000:0000:0001"
    "\fRoCE v2\feth0\f12\f0000:0000:0000:0000:0000:ffff:0a00:0001"
)
_KFD = "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nlocation_id 18176\ndomain 0\n"
_STUCK = "5403 (nvidia-smi) D 5396 5403 5396 0 -1 4194560\fvoluntary_ctxt_switches:\t17\n\fuvm_gpu_retain_by_uuid"
_DRIVERS = "550.90.07\f../../../../bus/pci/drivers/mlx5_core\f/usr/lib/libcuda.so.550.90.07"

MACHINE_TARGETS: tuple[Target, ...] = (
    _of(cpus.cpu_kind, "cpu family\t: 6\nmodel\t\t: 143\n", "vendor_id\t: AuthenticAMD\n"),
    Target(pcie_tree.acs_problem, lambda text: pcie_tree.acs_problem(machine(text), ("0000:61:00.0",)), ("\0",)),
    _of(pcie_tree.iommu_options, "root=/dev/x intel_iommu=on iommu=pt pci=noats\n"),
    Target(
        pcie_tree.read_device,
        lambda text: pcie_tree.read_device(machine(text), "0000:61:00.0", "bridge", {"0000:61:00": "7"}),
        ("16\f16.0 GT/s PCIe\f8\f0x060400",),
    ),
    _of(pcie_tree.slots, "0000:61:00\n"),
    _of(pcie_tree.virtual, "flags\t: fpu hypervisor\n", "QEMU\n"),
    Target(
        setting_origins.setting_origins,
        lambda text: setting_origins.setting_origins(_with_settings(text)),
        ("7 (sh) S 6 \fNCCL_DEBUG=INFO\0", "7 (sh) S 6 7 "),
    ),
    _of(rdma.efa_names, "../../../bus/pci/drivers/efa"),
    Target(rdma.read_after, lambda text: rdma.read_after(machine(text), ["mlx5_0"]), (_PORT,)),
    _of(host_limits.maker, "../../../../bus/pci/drivers/ena\fAmazon EC2\fp5.48xlarge\fAmazon EC2"),
    _of(host_gpus.pci_gpus, "0x10de\f0x030200\f../x"),
    _of(host_gpus.in_container, "0::/kubepods/besteffort/pod3c\n"),
    _of(host_gpus.gpu_is_due, "0x10de\f0x030200\f../x"),
    _of(host_gpus.gpu_is_given, "0x10de"),
    _of(host_gpus.may_have_gpus, "0x10de\f0x030200"),
    Target(
        host_gpus.fabric_manager_runs,
        lambda text: host_gpus.fabric_manager_runs(machine(text), NAMES),
        ("nv-fabricmanager\n", "0::/x\fnv-fabricmana\n"),
    ),
    Target(kernel_files.first_line, lambda text: kernel_files.first_line(machine(text), "/x"), ("0x10de\n",)),
    _of(host_limits.rdma_devices, "4: ACTIVE\n"),
    _of(kernel.read_log, "[    0.000000] Linux version 6.8.0-45-generic (gcc 13.2.0)\n"),
    _of(kernel.libraries, _DRIVERS),
    _of(kernel.modules, _DRIVERS),
    Target(kernel.peermem, lambda text: kernel.peermem(machine(text), {"nvidia_peermem": text[:9]}), ("550.90.07",)),
    _of(kernel.rdma_drivers, f"4: ACTIVE\f{_DRIVERS}"),
    _of(kernel.rdma_pci_devices, _PATH),
    _of(kernel_log.booted_at, "btime 1714567890\n", "350735.47 234388.90"),
    _of(kernel_log.uptime_s, "350735.47 234388.90"),
    _of(nccl_interface.conf_files, _CONF, f"Uid:\t1000\n\f{_CONF}"),
    _of(nccl_interface.nccl_environment, f"Uid:\t1000\n\f{_CONF}"),
    _of(accelerators.unsupported, _KFD, f"{_KFD}\fAMD Instinct MI300X OAM"),
    Target(
        pci_devices.gpu_device,
        lambda text: pci_devices.gpu_device(machine(text), "GPU0", "0000:61:00.0"),
        (f"{_PATH}\f0\f16",),
    ),
    Target(
        pci_devices.near_cpus,
        lambda text: pci_devices.near_cpus(machine(text), "0000:61:00.0"),
        ("0\f0-31,64-95", "-1"),
    ),
    Target(pci_devices.net_devices, lambda text: list(pci_devices.net_devices(machine(text))), (f"{_PATH}\f0\f16",)),
    _of(pci_devices.rdma_devices, f"{_PATH}\f0\f16"),
    Target(pci_devices.bridges_above, lambda text: pci_devices.bridges_above(machine(text), "0000:61:00.0"), (_PATH,)),
    Target(pci_devices.device_of, lambda text: pci_devices.device_of(machine(text), "/x"), (_PATH,)),
    Target(rdma.read_hcas, lambda text: rdma.read_hcas(machine(text), ["mlx5_0", "efa_0"]), (_PORT, _PATH)),
    Target(
        rdma.read_netdevs,
        lambda text: rdma.read_netdevs(machine(text), rdma.read_hcas(machine(text), ["mlx5_0"])),
        (f"{_PORT}\f9000\fup",),
    ),
    _of(rdma.uptime_s, "350735.47 234388.90"),
    _of(processes_in_driver.stuck_processes, _STUCK),
    _of(verbs_library.verbs_library, "driver mlx5\n"),
    Target(
        verbs_library.verbs_providers,
        lambda text: verbs_library.verbs_providers(machine(text), "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"),
        ("driver mlx5\n",),
    ),
)
