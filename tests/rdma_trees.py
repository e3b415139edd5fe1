"""RDMA devices as the kernel shows them in /sys and /dev: machines as files, for a real or a faked root.

Formats: the kernel's drivers/infiniband/core/sysfs.c and Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.fakes import FakeContext

CLASS = "/sys/class/infiniband"
VERBS = "/sys/class/infiniband_verbs"
HEALTHY_COUNTERS = {
    "symbol_error": 0,
    "link_error_recovery": 0,
    "link_downed": 1,
    "port_rcv_errors": 0,
    "port_xmit_discards": 0,
    "port_xmit_wait": 918273,
}
HEALTHY_HW_COUNTERS = {"out_of_sequence": 0, "packet_seq_err": 0, "local_ack_timeout_err": 0, "np_cnp_sent": 7}

#: One entry of a GID table: address, type, net device. A type of None is EINVAL, as in a container.
Entry = tuple[str, str | None, str]


@cache
def full(address: str) -> str:
    """``10.0.0.1`` and ``fe80::1`` as sysfs prints them."""
    import ipaddress

    text = f"::ffff:{address}" if "." in address else address
    return ipaddress.IPv6Address(text).exploded


def roce_table(netdev: str, ipv4: str | None, number: int = 1) -> dict[int, Entry]:
    """The table of an Ethernet port: both versions of the link-local address, then of IPv4."""
    local = full(f"fe80::ac0:ebff:fe00:{number:x}")
    table: dict[int, Entry] = {0: (local, "IB/RoCE v1", netdev), 1: (local, "RoCE v2", netdev)}
    if ipv4:
        table |= {2: (full(ipv4), "IB/RoCE v1", netdev), 3: (full(ipv4), "RoCE v2", netdev)}
    return table


@dataclass
class Tree:
    """Files and links below a root; ``context`` and ``write`` make a machine of them."""

    files: dict[str, str | OSError] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def hca(self, name: str, bus_id: str | None, number: int, **more: object) -> None:
        at = f"{CLASS}/{name}"
        given = {
            "node_type": "1: CA",
            "node_guid": f"b83f:d203:00aa:{number:04x}",
            "fw_ver": "28.39.1002",
            "hca_type": "MT4129",
            "board_id": "MT_0000000838",
            **more,
        }
        driver, uverbs = str(given.pop("driver", "mlx5_core")), given.pop("uverbs", True)
        self.files |= {f"{at}/{key}": f"{value}\n" for key, value in given.items() if value is not None}
        self.files[f"{VERBS}/uverbs{number}/ibdev"] = f"{name}\n"
        if uverbs:
            self.files[f"/dev/infiniband/uverbs{number}"] = OSError(errno.EINVAL, "Invalid argument")
        if bus_id is not None:
            self.links[f"{at}/device"] = f"../../../devices/pci0000:00/{bus_id}"
            self.links[f"{at}/device/driver"] = f"../../../bus/pci/drivers/{driver}"
            self.files[f"{at}/device/numa_node"] = "0\n"

    def port(
        self,
        name: str,
        *,
        number: int = 1,
        state: str = "4: ACTIVE",
        phys: str = "5: LinkUp",
        layer: str = "InfiniBand",
        rate: str = "400 Gb/sec (4X NDR)",
        sm_lid: str = "0x1",
        gids: Mapping[int, Entry] | None = None,
        counters: Mapping[str, int] | None = None,
        slots: int = 32,
    ) -> None:
        at = f"{CLASS}/{name}/ports/{number}"
        told = {"state": state, "phys_state": phys, "link_layer": layer, "rate": rate, "lid": "0x5", "sm_lid": sm_lid}
        self.files |= {f"{at}/{key}": f"{value}\n" for key, value in told.items()}
        table = {0: (full("fe80::b83f:d203:aa:1"), "IB/RoCE v1", "")} if gids is None else gids
        for index in range(slots):
            address, kind, netdev = table.get(index, (full("::"), None, ""))
            self.files[f"{at}/gids/{index}"] = f"{address}\n"
            invalid = OSError(errno.EINVAL, "Invalid argument")
            self.files[f"{at}/gid_attrs/types/{index}"] = f"{kind}\n" if kind else invalid
            self.files[f"{at}/gid_attrs/ndevs/{index}"] = f"{netdev}\n" if netdev else invalid
        for key, value in {**HEALTHY_COUNTERS, **(counters or {})}.items():
            self.files[f"{at}/counters/{key}"] = f"{value}\n"
        for key, value in HEALTHY_HW_COUNTERS.items():
            self.files[f"{at}/hw_counters/{key}"] = f"{(counters or {}).get(key, value)}\n"

    def netdev(self, name: str, mtu: int = 4200, carrier_changes: int = 2, mode: str = "", slaves: str = "") -> None:
        told: dict[str, object] = {"mtu": mtu, "operstate": "up", "carrier_changes": carrier_changes}
        if mode:
            told |= {"bonding/mode": mode, "bonding/slaves": slaves}
        self.files |= {f"/sys/class/net/{name}/{key}": f"{value}\n" for key, value in told.items()}

    def verbs(self, *providers: str) -> None:
        """libibverbs and its drivers, as Debian's packages install them."""
        self.links["/usr/lib/x86_64-linux-gnu/libibverbs.so.1"] = "libibverbs.so.1.14.39.0"
        for one in providers:
            self.files[f"/etc/libibverbs.d/{one}.driver"] = f"driver {one}\n"

    def context(self, env: Mapping[str, str] | None = None) -> FakeContext:
        return FakeContext(env=env or {}, files=self.files, links=self.links)

    def write(self, root: Path) -> None:
        """Write the machine to disk; unreadable files are omitted."""
        for path, target in sorted(self.links.items()):
            link = root / path.lstrip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
            if "." not in link.name:  # a folder, not a library
                (link.parent / target).resolve().mkdir(parents=True, exist_ok=True)
        for path, text in self.files.items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(text, str):
                file.write_text(text)
            elif path.startswith("/dev/"):
                file.touch()


def _base(*providers: str, up_days: float = 30.0) -> Tree:
    tree = Tree({"/proc/uptime": f"{up_days * 86400:.2f} 1.00\n", "/proc/1/cgroup": "0::/init.scope\n"})
    tree.verbs(*providers)
    return tree


def bus(number: int) -> str:
    """Return a different PCI address for each of 8 cards."""
    return f"0000:{0x18 + 0x11 * number:02x}:00.0"


def infiniband(
    down: Sequence[int] = (),
    slow: Sequence[int] = (),
    init: Sequence[int] = (),
    counters: Mapping[int, Mapping[str, int]] | None = None,
    firmware: Mapping[int, str] | None = None,
) -> Tree:
    """Eight NDR rails, and a dual-port Ethernet card for storage with one cable, as on many nodes."""
    tree = _base("mlx5")
    for at in range(8):
        name = f"mlx5_{at}"
        tree.hca(name, bus(at), at, fw_ver=(firmware or {}).get(at, "28.39.1002"))
        if at in down:
            tree.port(name, state="1: DOWN", phys="2: Polling", rate="10 Gb/sec (4X SDR)", sm_lid="0x0")
        elif at in init:
            tree.port(name, state="2: INIT", phys="5: LinkUp", sm_lid="0x0")
        else:
            rate = "100 Gb/sec (1X NDR)" if at in slow else "400 Gb/sec (4X NDR)"
            tree.port(name, rate=rate, counters=(counters or {}).get(at))
    return tree


def with_storage(tree: Tree, ipv4: str = "10.9.0.1") -> Tree:
    """Add a dual-port 25 Gb/s Ethernet card, with one port not connected."""
    for function in (0, 1):
        name, up = f"mlx5_{8 + function}", function == 0
        tree.hca(name, f"0000:c1:00.{function}", 8 + function, hca_type="MT4117", board_id="MT_2420110034")
        state = ("4: ACTIVE", "5: LinkUp") if up else ("1: DOWN", "3: Disabled")
        table = roce_table(f"ens{function}", ipv4 if up else None, 80 + function)
        rate = "25 Gb/sec (1X EDR)"
        tree.port(name, state=state[0], phys=state[1], layer="Ethernet", rate=rate, gids=table)
        tree.netdev(f"ens{function}", mtu=1500)
    return tree


def roce(
    node: int = 0,
    *,
    addressed: bool = True,
    without: Sequence[int] = (),
    small_mtu: Sequence[int] = (),
    shift: int = 0,
    carrier_changes: Mapping[int, int] | None = None,
) -> Tree:
    """Return eight 400G Ethernet rails; ``shift`` entries precede the IPv4 ones, as with a VLAN."""
    tree = _base("mlx5")
    for at in range(8):
        name, netdev = f"mlx5_{at}", f"eth{at}"
        tree.hca(name, bus(at), at, board_id="MT_0000000834")
        table = roce_table(netdev, None, at)
        for extra in range(shift):
            table[2 + extra] = (
                full(f"fe80::{node + 1}:{extra + 1}"),
                "IB/RoCE v1" if extra % 2 == 0 else "RoCE v2",
                f"{netdev}.7",
            )
        if addressed and at not in without:
            address = full(f"10.{at}.0.{node + 1}")
            table |= {2 + shift: (address, "IB/RoCE v1", netdev), 3 + shift: (address, "RoCE v2", netdev)}
        tree.port(name, layer="Ethernet", sm_lid="0x0", gids=table)
        changes = (carrier_changes or {}).get(at, 2)
        tree.netdev(netdev, mtu=1500 if at in small_mtu else 9000, carrier_changes=changes)
    return tree


def bond(down: str = "", ups: int = 1, slaves: str = "ens1f0np0 ens1f1np1") -> Tree:
    """Return one bonded device over two ports, as in many two-socket machines; ``down`` is a slave."""
    tree = _base("mlx5")
    tree.hca("mlx5_bond_0", "0000:17:00.0", 0, hca_type="MT4125", board_id="MT_0000000359")
    table = roce_table("bond0", "10.1.0.1")
    tree.port("mlx5_bond_0", layer="Ethernet", rate="100 Gb/sec (4X EDR)", sm_lid="0x0", gids=table)
    tree.netdev("bond0", mtu=1500, mode="802.3ad 4", slaves=slaves)
    for name in slaves.split():
        tree.netdev(name, mtu=1500)
        mii = "down" if name == down else "up"
        told = {"bonding_slave/mii_status": mii, "carrier_up_count": ups if name == down else 1}
        tree.files |= {f"/sys/class/net/{name}/{key}": f"{value}\n" for key, value in told.items()}
        tree.links[f"/sys/class/net/{name}/master"] = "../bond0"
    return tree


def virtual_functions(count: int = 62) -> Tree:
    """Return a card split into virtual functions, two of which are in use."""
    tree = _base("mlx5")
    tree.hca("mlx5_0", bus(0), 0)
    tree.files[f"{CLASS}/mlx5_0/device/sriov_numvfs"] = f"{count}\n"
    tree.port("mlx5_0")
    for at in range(1, count + 1):
        name = f"mlx5_{at}"
        tree.hca(name, f"0000:18:{at // 8:02x}.{at % 8}", at)
        tree.links[f"{CLASS}/{name}/device/physfn"] = f"../{bus(0)}"
        up = at <= 2
        tree.port(name, state="4: ACTIVE" if up else "1: DOWN", phys="5: LinkUp" if up else "2: Polling")
    return tree


def efa(count: int = 4) -> Tree:
    """Amazon's adapters: no link layer that NCCL's own transport knows."""
    tree = _base("efa")
    for at in range(count):
        name = f"rdmap{at}s6"
        more = {"driver": "efa", "node_type": "7: <unknown>", "hca_type": None, "board_id": None, "fw_ver": "0.0.0.0"}
        tree.hca(name, f"0000:{0x50 + at:02x}:1b.0", at, **more)
        tree.port(name, layer="Unspecified", rate="100 Gb/sec (4X EDR)", sm_lid="0x0")
    return tree


def software() -> Tree:
    """Soft-RoCE over an ordinary interface, as a laptop may have it."""
    tree = _base("rxe")
    tree.hca("rxe0", None, 0, hca_type=None, board_id=None, fw_ver=None)
    table = roce_table("eth0", "192.168.1.20")
    tree.port("rxe0", layer="Ethernet", rate="2.5 Gb/sec (1X SDR)", sm_lid="0x0", gids=table)
    tree.netdev("eth0", mtu=1500)
    return tree


def irdma() -> Tree:
    """Intel's E810 as RoCE v2: no hca_type, names after the interface."""
    tree = _base("irdma")
    for at in range(2):
        more = {"driver": "ice", "hca_type": None, "board_id": None, "fw_ver": "1.71"}
        tree.hca(f"rocep{1 + at}s0f0", f"0000:{0x31 + at:02x}:00.0", at, **more)
        table = {0: (full(f"10.2.{at}.1"), "RoCE v2", f"ens{at}f0")}
        tree.port(f"rocep{1 + at}s0f0", layer="Ethernet", rate="100 Gb/sec (4X EDR)", sm_lid="0x0", gids=table)
        tree.netdev(f"ens{at}f0", mtu=9000)
    return tree


def container(tree: Tree) -> Tree:
    """Return the same machine in a container that was given none of its devices."""
    kept = {path: text for path, text in tree.files.items() if not path.startswith("/dev/infiniband")}
    return Tree({**kept, "/.dockerenv": ""}, dict(tree.links))


def macvlan_pod(tree: Tree, index: int, ipv4: str, devices: int = 8) -> Tree:
    """Return a pod with its own interfaces: the host's entries show their address but not their type."""
    files = dict(tree.files)
    for at in range(devices):
        gids = f"{CLASS}/mlx5_{at}/ports/1"
        for old in range(index):
            for what in ("types", "ndevs"):
                files[f"{gids}/gid_attrs/{what}/{old}"] = OSError(errno.EINVAL, "Invalid argument")
        for step, kind in enumerate(("IB/RoCE v1", "RoCE v2")):
            files[f"{gids}/gids/{index + step}"] = full(f"{ipv4}.{at + 1}") + "\n"
            files[f"{gids}/gid_attrs/types/{index + step}"] = f"{kind}\n"
            files[f"{gids}/gid_attrs/ndevs/{index + step}"] = f"net{at}\n"
        files[f"/sys/class/net/net{at}/mtu"] = "9000\n"
    return Tree({**files, "/.dockerenv": ""}, dict(tree.links))
