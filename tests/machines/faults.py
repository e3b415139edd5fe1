"""One fault at a time on the second of two DGX H100 (or HGX A100 with RoCE), and what must be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddp_doctor.model.context import Disk
from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.report import Report
from tests import rdma_trees
from tests.machines import parts, servers
from tests.machines.whole import GIB, Whole, linked

Pair = list[Whole]
MIB = 2**20
#: GPU 3 and its NIC, where most faults are planted.
GPU, NIC = "0000:61:00.0", "0000:5e:00.0"
_XID_79 = f"NVRM: Xid (PCI:{GPU[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def dgx_pair() -> Pair:
    """Two DGX H100, seen by root, so that all is seen."""
    return [servers.dgx_h100(node, as_root=True) for node in range(2)]


def roce_pair() -> Pair:
    """Two HGX A100 with RoCE."""
    return [servers.hgx_a100_roce(node, as_root=True) for node in range(2)]


@dataclass(frozen=True)
class Planted:
    """A fault, how it is planted, and the whole of what must be said: code, severity, who is to blame."""

    name: str
    plant: Callable[[Pair], None]
    says: tuple[tuple[str, str, str], ...] = ()
    build: Callable[[], Pair] = dgx_pair

    def nodes(self) -> Pair:
        """The two machines with the fault."""
        pair = self.build()
        self.plant(pair)
        return pair


def blame(report: Report) -> tuple[tuple[str, str, str], ...]:
    """What a report says, as ``Planted.says`` has it."""
    return tuple(
        (one.code, one.severity.value, ", ".join(_named(culprit) for culprit in one.culprits))
        for one in report.findings
    )


def _named(culprit: Culprit) -> str:
    what = f" GPU {culprit.gpu}" if culprit.gpu is not None else f" {culprit.name}" if culprit.name else ""
    return f"{culprit.node or ''}{what}".strip()


def _nvml(fault: str, topology: str = "") -> Callable[[Pair], None]:
    def plant(pair: Pair) -> None:
        pair[1].nvml = {"NVML_STAND_IN": fault, **({"NVML_STAND_IN_TOPOLOGY": topology} if topology else {})}

    return plant


def _both(*plants: Callable[[Pair], None]) -> Callable[[Pair], None]:
    def plant(pair: Pair) -> None:
        for one in plants:
            one(pair)

    return plant


def _said(text: str, ago_s: float = 600) -> Callable[[Pair], None]:
    return lambda pair: pair[1].board.said(text, ago_s)


def _env(*nodes: int, **settings: str) -> Callable[[Pair], None]:
    def plant(pair: Pair) -> None:
        for node in nodes:
            pair[node].env |= settings

    return plant


def _file(path: str, text: str) -> Callable[[Pair], None]:
    return lambda pair: pair[1].board.tree.write(path, text)


def _port(at: int, **values: str) -> Callable[[Pair], None]:
    """What /sys says of the port of mlx5_AT."""

    def plant(pair: Pair) -> None:
        for name, text in values.items():
            pair[1].board.tree.write(f"{rdma_trees.CLASS}/mlx5_{at}/ports/1/{name}", f"{text}\n")

    return plant


def _down(at: int) -> Callable[[Pair], None]:
    return _port(at, state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)", sm_lid="0x0")


def _every(one: Callable[[int], Callable[[Pair], None]]) -> Callable[[Pair], None]:
    """The same on all eight rails."""
    return _both(*(one(at) for at in range(8)))


def _via(
    nodes: tuple[int, ...], within: str = "", between: str = "", says: str = ""
) -> Callable[[Pair], None]:
    """What NCCL's log tells, where the fault shows in it."""

    def plant(pair: Pair) -> None:
        for node in nodes:
            if within:
                pair[node].via = lambda _one, _two: within
            pair[node].between = between or pair[node].between
            pair[node].says = says

    return plant


def _no_fabric_manager(pair: Pair) -> None:
    pair[1].board.tree.remove("/proc/2201")


def _lacks_a_gpu_on_the_bus(pair: Pair) -> None:
    pair[1].board.tree.remove("/sys/bus/pci/devices/0000:df:00.0")


def _acs(pair: Pair) -> None:
    pair[1] = servers.dgx_h100(1, as_root=True, acs=0x1D)


def _no_peermem(pair: Pair) -> None:
    pair[1].board.tree.remove("/sys/module/nvidia_peermem")
    module = f"NVIDIA UNIX x86_64 Kernel Module  {parts.VERSION}  Fri May 31 09:35:42 UTC 2024"
    pair[1].board.tree.write("/proc/driver/nvidia/version", f"NVRM version: {module}\n")


def _shm(pair: Pair) -> None:
    pair[1].shm = Disk(64 * MIB, 64 * MIB)


def _memlock(pair: Pair) -> None:
    pair[1].limits = {**pair[1].limits, "MEMLOCK": 65536}
    pair[1].board.as_root = False
    parts.allow(pair[1].board, "0-223")


def _preloaded(pair: Pair) -> None:
    other = "/opt/nccl/lib/libnccl.so.2"
    pair[1].env["LD_PRELOAD"] = other
    pair[1].commands["ldd"] = linked(other)
    pair[1].nccl_version = 21903


def _new_library(pair: Pair) -> None:
    tree = pair[1].board.tree
    for name in ("libcuda", "libnvidia-ml"):
        tree.remove(f"/usr/lib/x86_64-linux-gnu/{name}.so.1")
        tree.link(f"/usr/lib/x86_64-linux-gnu/{name}.so.1", f"{name}.so.555.42.02")


def _no_module(pair: Pair) -> None:
    tree = pair[1].board.tree
    for path in (
        "/proc/driver",
        "/sys/module/nvidia",
        "/sys/module/nvidia_uvm",
        "/sys/module/nvidia_peermem",
    ):
        tree.remove(path)
    for at in range(8):
        tree.remove(f"/dev/nvidia{at}")


def _stuck(pair: Pair) -> None:
    tree = pair[1].board.tree
    for path in ("/proc/5403/stat", "/proc/5403/task/5403/stat"):
        tree.write(path, "5403 (nvidia-smi) D 5396 5403 5396 0 -1 4194560 1\n")
    for path in ("/proc/5403/status", "/proc/5403/task/5403/status"):
        tree.write(path, "voluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t1\n")
    tree.write("/proc/5403/wchan", "uvm_gpu_retain_by_uuid")


def _half_width(pair: Pair) -> None:
    pair[1].board.tree.write(f"/sys/bus/pci/devices/{GPU}/current_link_width", "8\n")


def _conf(pair: Pair) -> None:
    pair[1].board.tree.write("/etc/nccl.conf", "NCCL_IB_DISABLE=1\n")


def _another_table(pair: Pair) -> None:
    """A VLAN has put entries before those of IPv4, and both nodes ask for the usual index."""
    tree = rdma_trees.roce(1, shift=2)
    for path, text in tree.files.items():
        if "/gids/" in path or "/gid_attrs/" in path:
            if isinstance(text, str):
                pair[1].board.tree.write(path, text)
                pair[1].refused.pop(path, None)
            else:
                pair[1].refused[path] = text
    _env(0, 1, NCCL_IB_GID_INDEX="3")(pair)


def _no_address(pair: Pair) -> None:
    for at in range(8):
        for index in (2, 3):
            path = f"{rdma_trees.CLASS}/mlx5_{at}/ports/1/gids/{index}"
            pair[1].board.tree.write(path, f"{rdma_trees.full('::')}\n")


def _loopback_names(pair: Pair) -> None:
    for machine in pair:
        machine.names[machine.host] = ("127.0.1.1",)


_SOCKETS = _via((0, 1), between="NET/Socket/0", says="Using network Socket")

FAULTS = (
    Planted("a GPU that NVML calls lost", _nvml("gpu_lost")),
    Planted("the same, and Xid 79 in the log", _both(_nvml("gpu_lost"), _said(_XID_79))),
    Planted(
        "Xid 79, and the GPU gone from NVML and the bus",
        _both(_nvml("seven"), _lacks_a_gpu_on_the_bus, _said(_XID_79.replace("61", "df"))),
    ),
    Planted("a GPU that NVML does not list", _nvml("seven")),
    Planted("NVML crashes", _nvml("crash")),
    Planted("NVML hangs, nvidia-smi is stuck", _both(_nvml("hang_gpu"), _stuck)),
    Planted("library of another version than the module", _both(_nvml("mismatch"), _new_library)),
    Planted("no kernel module", _both(_nvml("not_loaded"), _no_module)),
    Planted(
        "row remapping pending, Xid 63",
        _both(
            _nvml("remap_pending"),
            _said(
                f"NVRM: Xid (PCI:{GPU[:-2]}): 63, pid=1, Row Remapper: New row marked for remapping, reset gpu"
            ),
        ),
    ),
    Planted(
        "row remapping failed, Xid 64",
        _both(_nvml("remap_failed"), _said(f"NVRM: Xid (PCI:{GPU[:-2]}): 64, pid=1, Row Remapper: Failure")),
    ),
    Planted(
        "uncorrected errors, Xid 95",
        _both(
            _nvml("ecc"),
            _said(
                f"NVRM: Xid (PCI:{GPU[:-2]}): 95, pid=1, name=python3, Uncontained: SM (0x1). RST: Yes, D-RST: No"
            ),
        ),
    ),
    Planted(
        "two NVLinks down, Xid 74",
        _both(
            _nvml("healthy", "nvlinks_down"),
            _said(
                f"NVRM: Xid (PCI:{GPU[:-2]}): 74, pid=1, NVLink: fatal error detected on link 4(0x0, 0x0, 0x10000)"
            ),
        ),
    ),
    Planted("no fabric manager, GPUs not taken in", _both(_nvml("fabric_in_progress"), _no_fabric_manager)),
    Planted("no fabric manager, GPUs still well", _no_fabric_manager),
    Planted(
        "a fatal SXid, fabric degraded",
        _both(
            _nvml("fabric_degraded"),
            _said("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        ),
    ),
    Planted("ECC off", _nvml("ecc_off")),
    Planted("power limit lowered", _nvml("power_capped")),
    Planted("clocks set lower", _nvml("clocks_set")),
    Planted("slowed by heat", _nvml("throttled")),
    Planted("GPU memory in use", _nvml("full")),
    Planted("one GPU in slices", _nvml("mig")),
    Planted("GPU at x8", _half_width),
    Planted("access control on", _acs),
    Planted("an InfiniBand port down", _down(3)),
    Planted(
        "the same, NIC's firmware at fault",
        _both(
            _down(3),
            _said(
                f"mlx5_core {NIC}: poll_health:739:(pid 0): device's health compromised - reached miss count"
            ),
        ),
    ),
    Planted("all InfiniBand ports of a node down", _every(_down)),
    Planted("the same, NCCL_IB_HCA=mlx5 on both", _both(_every(_down), _env(0, 1, NCCL_IB_HCA="mlx5"))),
    Planted("a port at SDR", _port(3, rate="10 Gb/sec (4X SDR)")),
    Planted("no subnet manager", _every(lambda at: _port(at, state="2: INIT", sm_lid="0x0"))),
    Planted(
        "firmware of one node differs",
        _every(lambda at: _file(f"{rdma_trees.CLASS}/mlx5_{at}/fw_ver", "28.36.1010\n")),
    ),
    Planted(
        "PCIe errors of the NIC",
        _said(
            f"pcieport {parts.below(3, 1)[-1]}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
        ),
    ),
    Planted(
        "no nvidia_peermem",
        _both(
            _no_peermem,
            _via((1,), between="NET/IB/0", says="NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
        ),
    ),
    Planted("/dev/shm of 64 MiB", _shm),
    Planted("64 KiB of locked memory", _memlock),
    Planted("another NCCL by LD_PRELOAD", _preloaded),
    Planted("NCCL_IB_HCA matches nothing", _both(_env(0, 1, NCCL_IB_HCA="mlx4"), _SOCKETS)),
    Planted(
        "NCCL_IB_HCA matches nothing on one node",
        _both(_env(0, NCCL_IB_HCA="mlx5"), _env(1, NCCL_IB_HCA="mlx4"), _SOCKETS),
    ),
    Planted(
        "NCCL_P2P_DISABLE=1 left over",
        _both(_env(0, 1, NCCL_P2P_DISABLE="1"), _via((0, 1), "SHM/direct/direct")),
    ),
    Planted(
        "NCCL_P2P_DISABLE=1 left over on one node",
        _both(_env(1, NCCL_P2P_DISABLE="1"), _via((1,), "SHM/direct/direct")),
    ),
    Planted("NCCL_IB_DISABLE=1 left over", _both(_env(0, 1, NCCL_IB_DISABLE="1"), _SOCKETS)),
    Planted("NCCL_IB_DISABLE=1 in nccl.conf of one node", _both(_conf, _SOCKETS)),
    Planted(
        "no libibverbs in the image",
        lambda pair: pair[1].board.tree.remove("/usr/lib/x86_64-linux-gnu/libibverbs.so.1"),
    ),
    Planted("own names mean loopback", _loopback_names),
    Planted("GID index of another table", _another_table, build=roce_pair),
    Planted("RoCE ports without IPv4", _no_address, build=roce_pair),
    Planted("a RoCE port with a small MTU", _file("/sys/class/net/eth3/mtu", "1500\n"), build=roce_pair),
)
__all__ = ["FAULTS", "GIB", "Planted", "blame"]
