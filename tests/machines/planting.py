"""Injects faults on the second of two machines: functions that change the pair, or return one that does."""

from __future__ import annotations

from collections.abc import Callable

from ddp_doctor.model.context import Disk
from tests import rdma_trees
from tests.machines import parts, servers
from tests.machines.whole import Whole, linked

Pair = list[Whole]
MIB = 2**20
#: GPU 3 and its NIC, the location of most faults.
GPU, NIC = "0000:61:00.0", "0000:5e:00.0"


def dgx_pair() -> Pair:
    """Return two DGX H100, read by root, so that everything is visible."""
    return [servers.dgx_h100(node, as_root=True) for node in range(2)]


def roce_pair() -> Pair:
    return [servers.hgx_a100_roce(node, as_root=True) for node in range(2)]


def nvml(fault: str, topology: str = "") -> Callable[[Pair], None]:
    def plant(pair: Pair) -> None:
        pair[1].nvml = {"NVML_STAND_IN": fault, **({"NVML_STAND_IN_TOPOLOGY": topology} if topology else {})}

    return plant


def both(*plants: Callable[[Pair], None]) -> Callable[[Pair], None]:
    def plant(pair: Pair) -> None:
        for one in plants:
            one(pair)

    return plant


def said(text: str, ago_s: float = 600) -> Callable[[Pair], None]:
    return lambda pair: pair[1].board.said(text, ago_s)


def env(*nodes: int, **settings: str) -> Callable[[Pair], None]:
    def plant(pair: Pair) -> None:
        for node in nodes:
            pair[node].env |= settings

    return plant


def file(path: str, text: str) -> Callable[[Pair], None]:
    return lambda pair: pair[1].board.tree.write(path, text)


def port(at: int, **values: str) -> Callable[[Pair], None]:
    def plant(pair: Pair) -> None:
        for name, text in values.items():
            pair[1].board.tree.write(f"{rdma_trees.CLASS}/mlx5_{at}/ports/1/{name}", f"{text}\n")

    return plant


def down(at: int) -> Callable[[Pair], None]:
    return port(at, state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)", sm_lid="0x0")


def every(one: Callable[[int], Callable[[Pair], None]]) -> Callable[[Pair], None]:
    return both(*(one(at) for at in range(8)))


def via(nodes: tuple[int, ...], within: str = "", between: str = "", says: str = "") -> Callable[[Pair], None]:
    """Return a function that sets the lines of NCCL's log which show the fault."""

    def plant(pair: Pair) -> None:
        for node in nodes:
            if within:
                pair[node].via = lambda _one, _two: within
            pair[node].between = between or pair[node].between
            pair[node].says = says

    return plant


def no_fabric_manager(pair: Pair) -> None:
    pair[1].board.tree.remove("/proc/2201")


def lacks_a_gpu_on_the_bus(pair: Pair) -> None:
    pair[1].board.tree.remove("/sys/bus/pci/devices/0000:df:00.0")


def acs(pair: Pair) -> None:
    pair[1] = servers.dgx_h100(1, as_root=True, acs=0x1D)


def no_peermem(pair: Pair) -> None:
    """The closed driver without the module for GPUDirect RDMA."""
    pair[1].board.tree.remove("/sys/module/nvidia_peermem")
    module = f"NVIDIA UNIX x86_64 Kernel Module  {parts.VERSION}  Fri May 31 09:35:42 UTC 2024"
    pair[1].board.tree.write("/proc/driver/nvidia/version", f"NVRM version: {module}\n")


def shm(pair: Pair) -> None:
    """Docker's default."""
    pair[1].shm = Disk(64 * MIB, 64 * MIB)


def memlock(pair: Pair) -> None:
    """The default of most systems, for a user."""
    pair[1].limits = {**pair[1].limits, "MEMLOCK": 65536}
    pair[1].board.as_root = False
    parts.allow(pair[1].board, "0-223")


def preloaded(pair: Pair) -> None:
    other = "/opt/nccl/lib/libnccl.so.2"
    pair[1].env["LD_PRELOAD"] = other
    pair[1].commands["ldd"] = linked(other)
    pair[1].nccl_version = 21903


def new_library(pair: Pair) -> None:
    tree = pair[1].board.tree
    for name in ("libcuda", "libnvidia-ml"):
        tree.remove(f"/usr/lib/x86_64-linux-gnu/{name}.so.1")
        tree.link(f"/usr/lib/x86_64-linux-gnu/{name}.so.1", f"{name}.so.555.42.02")


def no_module(pair: Pair) -> None:
    tree = pair[1].board.tree
    for path in ("/proc/driver", "/sys/module/nvidia", "/sys/module/nvidia_uvm", "/sys/module/nvidia_peermem"):
        tree.remove(path)
    for at in range(8):
        tree.remove(f"/dev/nvidia{at}")


def stuck(pair: Pair) -> None:
    tree = pair[1].board.tree
    for path in ("/proc/5403/stat", "/proc/5403/task/5403/stat"):
        tree.write(path, "5403 (nvidia-smi) D 5396 5403 5396 0 -1 4194560 1\n")
    for path in ("/proc/5403/status", "/proc/5403/task/5403/status"):
        tree.write(path, "voluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t1\n")
    tree.write("/proc/5403/wchan", "uvm_gpu_retain_by_uuid")


def half_width(pair: Pair) -> None:
    pair[1].board.tree.write(f"/sys/bus/pci/devices/{GPU}/current_link_width", "8\n")


def conf(pair: Pair) -> None:
    pair[1].board.tree.write("/etc/nccl.conf", "NCCL_IB_DISABLE=1\n")


def another_table(pair: Pair) -> None:
    """Insert entries of a VLAN before the IPv4 ones; both nodes request the usual index."""
    tree = rdma_trees.roce(1, shift=2)
    for path, text in tree.files.items():
        if "/gids/" in path or "/gid_attrs/" in path:
            if isinstance(text, str):
                pair[1].board.tree.write(path, text)
                pair[1].refused.pop(path, None)
            else:
                pair[1].refused[path] = text
    env(0, 1, NCCL_IB_GID_INDEX="3")(pair)


def no_address(pair: Pair) -> None:
    for at in range(8):
        for index in (2, 3):
            path = f"{rdma_trees.CLASS}/mlx5_{at}/ports/1/gids/{index}"
            pair[1].board.tree.write(path, f"{rdma_trees.full('::')}\n")


def loopback_names(pair: Pair) -> None:
    """Set up /etc/hosts as Debian's installer does."""
    for machine in pair:
        machine.names[machine.host] = ("127.0.1.1",)


SOCKETS = via((0, 1), between="NET/Socket/0", says="Using network Socket")
