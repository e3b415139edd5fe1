r"""RDMA devices, read from /sys/class/infiniband without a library or privileges.

    mlx5_0/device                         -> ../../../0000:18:00.0
    mlx5_0/fw_ver, hca_type, board_id     28.39.1002   MT4129   MT_0000000838
    mlx5_0/node_type                      1: CA
    mlx5_0/ports/1/state, phys_state      4: ACTIVE   5: LinkUp
    mlx5_0/ports/1/rate, link_layer       400 Gb/sec (4X NDR)   InfiniBand
    mlx5_0/ports/1/gids/3                 0000:0000:0000:0000:0000:ffff:0a00:0001
    mlx5_0/ports/1/gid_attrs/types/3      RoCE v2
    mlx5_0/ports/1/gid_attrs/ndevs/3      eth2
    mlx5_0/ports/1/counters/link_downed   0
    /sys/class/net/bond0/bonding/slaves                       ens1f0np0 ens1f1np1
    /sys/class/net/ens1f1np1/bonding_slave/mii_status         down

Nothing is raised: what cannot be read stays unknown. Only active ports are read in full, and an address table only up
to a row of empty entries, so that 64 virtual functions cost little. Source of the formats: the kernel's
drivers/infiniband/core/sysfs.c.
"""

import errno
import re

from ddp_doctor.facts.node.rdma import Hca, NetDevice, Port, PortAfter
from ddp_doctor.knowledge.network import nccl_hca, rdma
from ddp_doctor.knowledge.network.roce_gids import Gid, compressed
from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import end_of, first_line, names_in
from ddp_doctor.probing.pci_devices import NET, RDMA

VERBS = "/sys/class/infiniband_verbs"
DEVICES = "/dev/infiniband"

_RATE = re.compile(r"(\d{1,6}(?:\.\d)?) Gb/sec")
_ROCE = {"IB/RoCE v1": 1, "RoCE v1": 1, "RoCE v2": 2}


def hca_names(ctx: Context) -> list[str]:
    """Return the RDMA devices in natural order; empty if the directory does not exist."""
    return sorted(names_in(ctx, RDMA), key=nccl_hca.natural)


def efa_names(ctx: Context) -> tuple[str, ...]:
    """Return Amazon's adapters: named efa_0 by the kernel, rdmap16s27 by rdma-core's udev rules."""
    return tuple(
        name
        for name in hca_names(ctx)
        if name.startswith("efa_") or end_of(ctx, f"{RDMA}/{name}/device/driver") == "efa"
    )


def read_hcas(ctx: Context, names: list[str]) -> tuple[Hca, ...]:
    """Return the devices with these names."""
    nodes = {first_line(ctx, f"{VERBS}/{node}/ibdev"): node for node in names_in(ctx, VERBS)}
    return tuple(_hca(ctx, name, nodes.get(name)) for name in names)


def read_after(ctx: Context, names: list[str]) -> tuple[PortAfter, ...]:
    """Return these devices' port values that may have changed since they were read, without virtual functions."""
    own = [name for name in names if end_of(ctx, f"{RDMA}/{name}/device/physfn") is None]
    ports = [(name, port) for name in own for port in sorted(names_in(ctx, f"{RDMA}/{name}/ports"))]
    found = []
    for name, port in ports:
        if port.isdecimal():
            at = f"{RDMA}/{name}/ports/{port}"
            netdev = first_line(ctx, f"{at}/gid_attrs/ndevs/0")
            after = PortAfter(
                hca=name,
                number=int(port),
                state=_after_number(first_line(ctx, f"{at}/state")),
                carrier_changes=_number(first_line(ctx, f"{NET}/{netdev}/carrier_changes")) if netdev else None,
                counters=_counters(ctx, at),
            )
            found.append(after)
    return tuple(found)


def read_netdevs(ctx: Context, hcas: tuple[Hca, ...]) -> tuple[NetDevice, ...]:
    """Return the network interfaces of these devices' ports, and the interfaces below their bonds."""
    names = {name for hca in hcas for port in hca.ports for name in port.netdevs}
    found = {name: _netdev(ctx, name) for name in sorted(names)}
    below = {slave for netdev in found.values() for slave in netdev.slaves} - found.keys()
    return (*found.values(), *(_netdev(ctx, name) for name in sorted(below)))


def uptime_s(ctx: Context) -> float | None:
    """Return the seconds since the kernel started, from ``350735.47 234388.90``."""
    match = re.match(r"\d{1,12}(\.\d+)?", first_line(ctx, "/proc/uptime") or "")
    return float(match[0]) if match else None


def _hca(ctx: Context, name: str, node: str | None) -> Hca:
    at = f"{RDMA}/{name}"
    bus_id = end_of(ctx, f"{at}/device")
    active = [port for port in names_in(ctx, f"{at}/ports") if port.isdecimal()]
    ports = tuple(_port(ctx, f"{at}/ports/{port}", int(port)) for port in sorted(active, key=int))
    named = [*names_in(ctx, f"{at}/device/net")]
    numa = first_line(ctx, f"{at}/device/numa_node")
    return Hca(
        name=name,
        bus_id=bus_id,
        driver=end_of(ctx, f"{at}/device/driver"),
        numa_node=int(numa) if numa and re.fullmatch(r"\d{1,5}", numa, re.ASCII) else None,
        node_type=_after_number(first_line(ctx, f"{at}/node_type")),
        node_guid=first_line(ctx, f"{at}/node_guid"),
        firmware=first_line(ctx, f"{at}/fw_ver"),
        hca_type=first_line(ctx, f"{at}/hca_type"),
        board_id=first_line(ctx, f"{at}/board_id"),
        is_virtual_function=end_of(ctx, f"{at}/device/physfn") is not None,
        virtual_functions=_number(first_line(ctx, f"{at}/device/sriov_numvfs")) or 0,
        device_node=node,
        device_problem=_device_problem(ctx, node) if any(port.is_active for port in ports) else None,
        ports=tuple(
            port if port.netdevs or len(ports) > 1 else port.model_copy(update={"netdevs": tuple(named)})
            for port in ports
        ),
    )


def _port(ctx: Context, at: str, number: int) -> Port:
    rate, state = first_line(ctx, f"{at}/rate"), _after_number(first_line(ctx, f"{at}/state"))
    layer = first_line(ctx, f"{at}/link_layer")
    match = _RATE.match(rate or "")
    gids = _gids(ctx, at, roce=layer == "Ethernet") if state == "ACTIVE" else ()
    return Port(
        number=number,
        state=state,
        phys_state=_after_number(first_line(ctx, f"{at}/phys_state")),
        link_layer=layer,
        rate=rate,
        rate_gbit_per_s=float(match[1]) if match else None,
        lid=_number(first_line(ctx, f"{at}/lid")),
        sm_lid=_number(first_line(ctx, f"{at}/sm_lid")),
        gids=gids,
        netdevs=tuple(dict.fromkeys(gid.netdev for gid in gids if gid.netdev)),
        counters=_counters(ctx, at) if state == "ACTIVE" else {},
    )


def _gids(ctx: Context, at: str, *, roce: bool) -> tuple[Gid, ...]:
    found: list[Gid] = []
    empty = 0
    for index in range(rdma.MOST_GIDS):
        text = first_line(ctx, f"{at}/gids/{index}")
        address = compressed(text) if text else None
        empty = 0 if address else empty + 1
        if text is None or empty > rdma.EMPTY_GIDS_IN_A_ROW:
            break
        if address and roce:
            hidden, gid_type = False, ""
            try:
                gid_type = ctx.read(f"{at}/gid_attrs/types/{index}").strip()
            except OSError as error:
                hidden = error.errno == errno.EINVAL
            netdev = first_line(ctx, f"{at}/gid_attrs/ndevs/{index}") or None
            found.append(Gid(index=index, address=address, roce=_ROCE.get(gid_type), netdev=netdev, hidden=hidden))
        elif address:
            found.append(Gid(index=index, address=address))
    return tuple(found)


def _counters(ctx: Context, at: str) -> dict[str, int]:
    folders = (("counters", rdma.LINK_COUNTERS), ("hw_counters", rdma.TRANSPORT_COUNTERS))
    return {
        name: value
        for folder, wanted in folders
        for name in names_in(ctx, f"{at}/{folder}")
        if name in wanted and (value := _number(first_line(ctx, f"{at}/{folder}/{name}"))) is not None
    }


def _device_problem(ctx: Context, node: str | None) -> str | None:
    """Return why a device node cannot be opened. Reading it has no effect, because the driver answers EINVAL."""
    if node is None:
        return "the kernel has made no uverbs device for it"
    try:
        ctx.read(f"{DEVICES}/{node}")
    except FileNotFoundError:
        return f"{DEVICES}/{node} is not here"
    except PermissionError as error:
        return f"{DEVICES}/{node}: {error.strerror}"
    except OSError:
        pass
    return None


def _netdev(ctx: Context, name: str) -> NetDevice:
    at = f"{NET}/{name}"
    return NetDevice(
        name=name,
        mtu_bytes=_number(first_line(ctx, f"{at}/mtu")),
        operstate=first_line(ctx, f"{at}/operstate"),
        carrier_changes=_number(first_line(ctx, f"{at}/carrier_changes")),
        carrier_up_count=_number(first_line(ctx, f"{at}/carrier_up_count")),
        mii_status=first_line(ctx, f"{at}/bonding_slave/mii_status"),
        master=end_of(ctx, f"{at}/master"),
        bond_mode=(first_line(ctx, f"{at}/bonding/mode") or "").partition(" ")[0] or None,
        slaves=tuple((first_line(ctx, f"{at}/bonding/slaves") or "").split()),
    )


def _after_number(text: str | None) -> str | None:
    """Return ``ACTIVE`` from ``4: ACTIVE``."""
    return text.rpartition(": ")[2] if text else None


def _number(text: str | None) -> int | None:
    """Return a count or an id, decimal or ``0x…``."""
    match = re.fullmatch(r"0x[0-9a-fA-F]{1,16}|\d{1,20}", text or "", re.ASCII)
    return int(match[0], 0 if match[0].startswith("0x") else 10) if match else None
