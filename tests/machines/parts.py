"""Parts of machines: Linux, NVIDIA's driver, a DGX's tree, common kernel messages."""

from __future__ import annotations

from collections.abc import Iterable

from ddp_doctor.model.context import Interface
from tests.machines.board import CPUS, Above, Board
from tests.rdma_trees import Tree

VERSION = "550.90.07"
XEON = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
EPYC = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n"
GRACE = "BogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n"
_CAPABILITIES = {True: "000001ffffffffff", False: "0000000000000000"}
_IPOIB = Interface(name="ib0", addresses=("192.168.100.1/24",), speed_mbps=400000, mtu=2044)


def linux(
    board: Board, cpu: str = XEON, *, node: int = 0, virtual: str = "", cpus: int = 128, memory_gib: int = 2000
) -> None:
    """Add the files of every Linux; ``virtual`` is the vendor of a virtual machine."""
    flag = " hypervisor" if virtual and cpu is not GRACE else ""
    kib = memory_gib * 2**20
    board.files(
        {
            "/proc/1/comm": "systemd\n",
            "/proc/1/cgroup": "0::/init.scope\n",
            "/proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
            "/proc/self/mountinfo": "35 25 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
            "/proc/self/uid_map": "         0          0 4294967295\n",
            "/proc/self/stat": "777 (python) R 1 777 777 0 -1 4194560 1\n",
            "/proc/uptime": f"{board.uptime_s:.2f} 1.00\n",
            "/proc/stat": "".join(f"cpu{at} 1 0 1 1 0 0 0 0 0 0\n" for at in range(cpus)),
            "/proc/loadavg": "1.25 1.11 0.99 2/138 16370\n",
            "/proc/meminfo": f"MemTotal: {kib:>14} kB\nMemAvailable: {kib * 9 // 10:>10} kB\n",
            "/proc/cpuinfo": f"processor\t: 0\n{cpu}flags\t\t: fpu vme{flag} sse\n",
            "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-5.15.0-105-generic root=/dev/sda2 ro\n",
            "/proc/sys/kernel/osrelease": "5.15.0-105-generic\n",
            "/proc/sys/kernel/random/boot_id": f"7c5e0c64-34b2-4f6f-9d0b-6e9f0d0a{node:04x}\n",
            "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
            "/sys/class/dmi/id/sys_vendor": f"{virtual or 'Supermicro'}\n",
        }
    )
    allow(board, f"0-{cpus - 1}")
    board.tree.link("/proc/self/ns/net", "net:[4026531840]")
    board.said("Linux version 5.15.0-105-generic (buildd@lcy02) (gcc 11.4.0) #115-Ubuntu SMP", board.uptime_s - 0.1)


def allow(board: Board, cpus: str) -> None:
    text = f"Name:\tpython\nCapEff:\t{_CAPABILITIES[board.as_root]}\nCpus_allowed_list:\t{cpus}\n"
    board.tree.write("/proc/self/status", text)


def driver(
    board: Board,
    minors: Iterable[int],
    version: str = VERSION,
    *,
    is_open: bool = True,
    peermem: bool = False,
    switches: bool = False,
) -> None:
    """The NVIDIA driver of a node: module, device nodes, libraries, and for NVSwitches the fabric manager."""
    words = f"UNIX {'Open Kernel Module for x86_64' if is_open else 'x86_64 Kernel Module'}  {version}"
    board.tree.write("/proc/driver/nvidia/version", f"NVRM version: NVIDIA {words}  Release Build\n")
    for module in ("nvidia", "nvidia_uvm", "nvidia_modeset", *(["nvidia_peermem"] if peermem else [])):
        board.tree.write(f"/sys/module/{module}/version", f"{version}\n")
    for name in (*(f"nvidia{at}" for at in minors), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        board.tree.write(f"/dev/{name}")
    for name in ("libcuda", "libnvidia-ml"):
        board.tree.link(f"/usr/lib/x86_64-linux-gnu/{name}.so.1", f"{name}.so.{version}")
    board.said("nvidia-nvlink: Nvlink Core is being initialized, major device number 511", board.uptime_s - 20)
    board.said(f"NVRM: loading NVIDIA {words}  Release Build  (dvs-builder@U22)", board.uptime_s - 21)
    if switches:
        board.tree.write("/dev/nvidia-nvswitchctl")
        board.tree.write("/proc/2201/comm", "nv-fabricmanage\n")
        board.tree.write("/proc/2201/stat", "2201 (nv-fabricmanage) S 1 2201 2201 0 -1 4194560 1\n")


def everyday(board: Board, gpu: str, nic: str | None = None, switch: str | None = None) -> None:
    """Log the lines of healthy machines: links that come up, yesterday's crash of a program, a corrected error."""
    board.said(
        f"NVRM: Xid (PCI:{gpu[:-2]}): 31, pid=90210, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE"
        " GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f22_c0000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        30 * 3600,
    )
    board.said(f"NVRM: Xid (PCI:{gpu[:-2]}): 43, pid=90210, name=python3, Ch 00000010", 30 * 3600 - 1)
    board.said(f"NVRM: Xid (PCI:{gpu[:-2]}): 45, pid=91133, name=python3, Ch 00000008", 300)
    board.said("INFO: task kworker/u256:3:1893 blocked for more than 120 seconds.", 900)
    board.said("NVRM: Persistence mode is deprecated and will be removed in a future release.", 100)
    if switch:
        board.said(
            f"nvidia-nvswitch0: SXid (PCI:{switch}): 12028, Non-fatal, Link 33 egress non-posted PRIV error", 5000
        )
    if nic:
        board.said(f"mlx5_core {nic}: firmware version: 28.39.1002", board.uptime_s - 9)
        board.said(
            f"mlx5_core {nic}: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)", board.uptime_s - 9
        )
        board.said(f"mlx5_core {nic}: Port module event: module 0, Cable plugged", board.uptime_s - 7)
        board.said(f"pcieport {nic}: AER: Corrected error message received from {nic}", 400)
        board.said(f"mlx5_core {nic}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", 400)


# --- a DGX H100 ----------------------------------------------------------------------------------------

GPUS = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
NICS = ("18", "40", "4f", "5e", "9a", "c0", "ce", "dc")
ROOTS = ("15", "37", "48", "59", "97", "b7", "c7", "d7")
SWITCH_PORTS = ("16", "3d", "4d", "5b", "98", "be", "cc", "da")


def dgx_tree(board: Board, device: str = "0x2330", acs: int = 0, *, paired: bool = False) -> None:
    """Add eight GPUs, four per socket, and four NVSwitches.

    Each GPU and the place of its NIC are below one PCIe switch, or pairs of GPUs as in machines with A100.
    """
    for at, bus in enumerate(GPUS):
        above = below(at // 2 * 2, at % 2) if paired else below(at, 0)
        board.seat(f"0000:{bus}:00.0", above, device=device, node=at // 4, cpus=CPUS[at // 4], acs=acs)
    for at in range(4):
        board.seat(
            f"0000:0{5 + at}:00.0",
            ("pci0000:00", f"0000:00:0{1 + at}.0"),
            kind="0x068000",
            device="0x22a3",
            driver="nvidia-nvswitch",
            width=2,
        )


def below(at: int, port: int) -> Above:
    root, bus = ROOTS[at], SWITCH_PORTS[at]
    return (
        f"pci0000:{root}",
        f"0000:{root}:01.0",
        f"0000:{int(root, 16) + 1:02x}:00.0",
        f"0000:{int(bus, 16) + 1:02x}:{port:02x}.0",
    )


def rails(tree: Tree, first: int = 0, *, paired: bool = False) -> dict[str, tuple[str, Above, int]]:
    """Return the places of mlx5_0 to mlx5_7 next to their GPUs, and of a dual-port card for storage."""
    above = [below(at // 2 * 2, 2 + at % 2) if paired else below(at, 1) for at in range(8)]
    places = {f"mlx5_{first + at}": (f"0000:{NICS[at]}:00.0", above[at], at // 4) for at in range(8)}
    for function in (0, 1):
        name = f"mlx5_{8 + function}"
        if f"/sys/class/infiniband/{name}/node_guid" in tree.files:
            places[name] = (f"0000:29:00.{function}", ("pci0000:26", "0000:26:01.0"), 0)
    return places


def interfaces(node: int = 0, *, ipoib: bool = False) -> tuple[Interface, ...]:
    """The management network, Docker's bridge, and for InfiniBand IP over it."""
    eth = Interface(name="ens6f0", addresses=(f"10.0.0.{1 + node}/24",), speed_mbps=25000)
    docker = Interface(name="docker0", addresses=("172.17.0.1/16",), running=False)
    ib = _IPOIB.model_copy(update={"addresses": (f"192.168.100.{1 + node}/24",)})
    return (eth, docker, *([ib] if ipoib else []))
