"""DD560-DD562, DD564, DD565, DD570, DD575, DD576: ports that are down, slow, unsteady, or unlike their peers."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.checks.node.rdma.nodes import (
    UNCONFIGURED,
    carries,
    cut_off,
    for_later_jobs,
    hits_of,
    identity,
    is_between_nodes,
    is_of_a_card,
    named_by_setting,
    odd_by_rate,
    odd_by_state,
    odd_ones,
    users,
    usual,
)
from ddp_doctor.checks.node.rdma.wording import Hit, look_at_link, port_draft
from ddp_doctor.facts.node.rdma import Hca, NetDevice, Port, RdmaFact
from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.rdma import DAY_S, FLAPS, FLAPS_PER_DAY, verbs_mtu
from ddp_doctor.knowledge.severity import of_detour
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.views.kernel_log import failed_nics
from ddp_doctor.wording.differences import odd_culprits, split, values_with_nodes
from ddp_doctor.wording.findings import likely, possible
from ddp_doctor.wording.nodes import host, hosts, name_list, node_culprit


@rule("DD560", "rdma-port-down", Consequence.COST, RdmaFact)
def rdma_port_down(recording: Recording) -> Iterator[Draft]:
    """An RDMA port is down, although similar ports are up.

    Finds: Reports a port that is down if at most a quarter of four or more similar ports (of its model on the node, or
        with its name on all nodes) are down, if all ports of its model on a node are down while other nodes have them
        up, or if NCCL_IB_HCA names it. Severity is error if NCCL_IB_HCA names no port that is up, or if the node has no
        other port of the kind that other nodes use. Unless it is an error, it is not reported if the NIC's firmware
        failed (DD336). On a single node, severity is info. Second ports of cards, virtual functions and EFA are
        skipped.
    Why: NCCL skips the port without a message. Its GPU reaches other nodes through another GPU's port, and the ranks
        that share a port slow down all others.
    Remedy: Check the cable, the transceiver and the switch port. Until then, NCCL uses the other ports.
    See: https://docs.kernel.org/admin-guide/abi-stable.html
    """
    odd = {identity(port.hit): port for port in odd_by_state(recording)}
    named = {  # by NCCL_IB_HCA, and whether the node has another port
        (node.node, hca.name, port.number): ((node.node, hca, port), bool(node.fact.chosen()))
        for node in users(recording)
        for hca, port in node.fact.ports()
        if port.state == "DOWN" and named_by_setting(node.fact, hca, port)
    }
    failed = {(nic.view.node, nic.device) for nic in failed_nics(recording)}
    hits = {**{key: port_at for key, (port_at, _) in named.items()}, **{key: port.hit for key, port in odd.items()}}
    grades: dict[Severity, list[tuple[Hit, str]]] = {}
    for key, (node, hca, port) in sorted(hits.items(), key=lambda hit: hit[0]):
        last = (key in named and not named[key][1]) or (key in odd and node in cut_off(recording))
        if last or (node, hca.bus_id) not in failed:
            peers = f"; {odd[key].peers} similar ports are up" if key in odd else ""
            asked = "; named in NCCL_IB_HCA" if key in named else ""
            words = f"{port.state or 'unknown'}, physical state {port.phys_state or 'unknown'}{peers}{asked}"
            severity = Severity.ERROR if last else for_later_jobs(recording, Severity.WARNING)
            grades.setdefault(severity, []).append((hits[key], words))
    for severity, described in grades.items():
        yield port_draft(
            recording,
            described,
            "the RDMA port is down" if len(described) == 1 else "the RDMA ports are down",
            look_at_link(described, "link is down"),
            detail="NCCL skips it without a warning, and other ports carry its traffic.",
            severity=severity,
        )


@rule("DD561", "no-subnet-manager", Consequence.FAILS, RdmaFact)
def no_subnet_manager(recording: Recording) -> Iterator[Draft]:
    """InfiniBand ports have a link, but no subnet manager activated them.

    Finds: Reports ports in state INIT or ARMED whose link is up. Severity is error for NCCL on several nodes if the
        node has no other port, or only Ethernet ports while other nodes have InfiniBand. It is warning if other ports
        work, and info otherwise.
    Why: Such a port carries no traffic. NCCL uses other ports, or TCP, without a message, and cannot connect to nodes
        that have InfiniBand.
    Remedy: Start a subnet manager in the fabric, or allow the port in its partition.
    See: https://docs.nvidia.com/networking/display/mlnxofedv24010331/opensm
    """
    grades: dict[Severity, list[tuple[Hit, str]]] = {}
    for port_at in hits_of(recording, _waits_for_a_manager):
        node, _, port = port_at
        severity = Severity.ERROR if node in cut_off(recording) else Severity.WARNING
        words = f"state {port.state}, LID {port.lid}, subnet manager's LID {port.sm_lid}"
        grade = severity if is_between_nodes(recording) else Severity.INFO
        grades.setdefault(grade, []).append((port_at, words))
    for severity, described in grades.items():
        yield port_draft(
            recording,
            described,
            "the link is up, but no subnet manager activated the port",
            by_administrator(
                "Start a subnet manager in this fabric: opensm on one host, or the switch's own",
                "sudo sminfo   # who is the subnet manager",
                "ibstat",
                scope="cluster",
                cost="administrator access; no effect on running jobs",
                references=("https://docs.kernel.org/infiniband/index.html",),
            ),
            detail="An InfiniBand port carries no traffic until a subnet manager assigns it an address.",
            severity=severity,
        )


def _waits_for_a_manager(hca: Hca, port: Port) -> bool:
    waits = port.state in UNCONFIGURED and port.phys_state == "LinkUp"
    return is_of_a_card(hca) and port.link_layer == "InfiniBand" and waits


@rule("DD562", "rdma-port-slower-than-peers", Consequence.SLOWER, RdmaFact)
def rdma_port_slower_than_peers(recording: Recording) -> Iterator[Draft]:
    """An RDMA link is slower than similar links.

    Finds: Reports active ports with a lower rate than three quarters of four or more similar ports (of its model on the
        node, or with its name on all nodes). Also reports InfiniBand links of a ConnectX-4 or newer at SDR speed. On a
        single node, severity is info.
    Why: A bad cable or transceiver gives a link fewer lanes or a lower speed. NCCL's rings run at the speed of their
        slowest link.
    Remedy: Reseat or replace the cable. Check whether the switch port forces a speed.
    See: https://www.infinibandta.org/infiniband-roadmap/
    """
    odd = {identity(port.hit): port for port in odd_by_rate(recording)}
    slowest = {identity(port_at): port_at for port_at in hits_of(recording, _is_at_slowest_speed)}
    described = []
    for key, port_at in {**slowest, **{key: port.hit for key, port in odd.items()}}.items():
        than = "the device can do 100 Gb/s or more"
        if key in odd:
            than = f"{odd[key].peers} similar ports have {odd[key].usual:g} Gb/s"
        described.append((port_at, f"{port_at[2].rate}; {than}"))
    if described:
        yield port_draft(
            recording,
            described,
            "the link runs below its maximum speed",
            look_at_link(described, "link runs at a lower speed"),
            detail="NCCL's rings run at the speed of their slowest link.",
            severity=for_later_jobs(recording, Severity.WARNING),
        )


def _is_at_slowest_speed(hca: Hca, port: Port) -> bool:
    """Return True for InfiniBand at SDR (2001) on a card of mlx5_core, which is from 2014 or later."""
    sdr = port.link_layer == "InfiniBand" and "SDR)" in (port.rate or "")
    return carries(hca, port) and hca.driver == "mlx5_core" and sdr


@dataclass(frozen=True)
class _Bond:
    """The bond over an RDMA port, and its slaves."""

    hit: Hit
    netdev: NetDevice
    slaves: tuple[NetDevice, ...]

    def lost(self) -> tuple[NetDevice, ...]:
        """Return the slaves that are down while another is up."""
        down = tuple(slave for slave in self.slaves if slave.mii_status == "down")
        return down if any(slave.mii_status == "up" for slave in self.slaves) else ()

    def in_words(self) -> str:
        """Describe the bond and its slaves: "bond0 (802.3ad): eth0 up, eth1 down"."""
        each = ", ".join(f"{slave.name} {slave.mii_status or 'unknown'}" for slave in self.slaves)
        return f"{self.netdev.name} ({self.netdev.bond_mode or 'mode unknown'}): {each}"


@rule("DD576", "rdma-bond-lost-a-link", Consequence.COST, RdmaFact)
def rdma_bond_lost_a_link(recording: Recording) -> Iterator[Draft]:
    """A bond that carries RDMA has lost some of its links.

    Finds: Reports a slave that the bonding driver considers down while another slave is up, in the bond of an active
        RoCE port. Severity is warning if the slave had a link at some time since the machine started, or if bonds of
        other nodes or cards are complete. Otherwise, and on a single node, it is info, because some sites create bonds
        of two ports and connect one cable. Bonds with one slave, and bonds without link monitoring (miimon=0), are
        skipped.
    Why: The RDMA port stays active and shows its usual rate, although half of its cables are missing. The rate is
        halved or, in mode active-backup, no spare link is left. NCCL's rings run at the speed of their slowest port.
    Remedy: Check the cable, the transceiver and the switch port of the slave that is down.
    See: https://docs.kernel.org/networking/bonding.html
        drivers/net/bonding/bond_sysfs_slave.c of the kernel: mii_status
    """
    bonds = []
    for node in recording.facts(RdmaFact):
        netdevs = {netdev.name: netdev for netdev in node.fact.netdevs}
        for hca, port in node.fact.ports():
            over = (netdevs[name] for name in port.netdevs if name in netdevs)
            master = next((netdev for netdev in over if netdev.slaves), None)
            if master is not None and port.is_active and is_of_a_card(hca):
                slaves = tuple(netdevs[name] for name in master.slaves if name in netdevs)
                bonds.append(_Bond((node.node, hca, port), master, slaves))
    whole = any(len(bond.slaves) > 1 and not bond.lost() for bond in bonds)
    grades: dict[Severity, list[_Bond]] = {}
    for bond in bonds:
        if bond.lost():
            sure = whole or any(netdev.carrier_up_count for netdev in bond.lost())
            severity = for_later_jobs(recording, Severity.WARNING) if sure else Severity.INFO
            grades.setdefault(severity, []).append(bond)
    for severity, some in grades.items():
        names = dict.fromkeys((bond.netdev.name, " and ".join(netdev.name for netdev in bond.lost())) for bond in some)
        what = "; ".join(f"its bond {bond} lost {slaves}" for bond, slaves in list(names)[:2])
        first = some[0].netdev.name
        commands = [(first, f"cat /proc/net/bonding/{first}")]
        commands += [(slave.name, f"ethtool {slave.name}") for slave in some[0].lost()]
        yield port_draft(
            recording,
            [(bond.hit, bond.in_words()) for bond in some],
            what if len(names) < 3 else "their bonds lost links",
            by_administrator(
                "Check cable, transceiver and switch port of the slave that is down",
                *(command for name, command in commands if nccl_hca.is_name(name)),
                cost="physical access to the cable; the bond keeps working",
                references=("https://docs.kernel.org/networking/bonding.html",),
            ),
            detail="The RDMA port stays active and reports its usual rate, but uses fewer cables.",
            severity=severity,
            confidence=Confidence.PROVED,
        )


@rule("DD570", "roce-mtu-smaller-than-peers", Consequence.COST, RdmaFact)
def roce_mtu_smaller_than_peers(recording: Recording) -> Iterator[Draft]:
    """A RoCE port sends smaller packets than its peers.

    Finds: For NCCL on several nodes, reports an active RoCE port if the MTU of its interface gives RDMA smaller packets
        than three quarters of its peers have. An MTU of 1500 gives packets of 1024 bytes, 4200 and more gives 4096.
    Why: Both ends of a connection use the smaller size. This means four times as many packets, and every link to this
        port becomes as slow as the port. If the switch has the small MTU, large packets are lost.
    Remedy: Set the peers' MTU on the interface, its bond and the switch port.
    See: include/rdma/ib_addr.h of the kernel, iboe_get_mtu
        NCCL src/transport/net_ib/connect.cc
    """
    mtus: dict[tuple[int, str, int], NetDevice] = {}
    hits: list[Hit] = []
    for node in users(recording):
        for hca, port in node.fact.chosen():
            netdev = node.fact.netdev(port) if port.is_roce and is_of_a_card(hca) else None
            if netdev is not None and netdev.mtu_bytes is not None:
                hits.append((node.node, hca, port))
                mtus[identity(hits[-1])] = netdev
    odd = odd_ones(hits, lambda port_at: verbs_mtu(mtus[identity(port_at)].mtu_bytes or 0))
    if not odd:
        return
    small = {identity(port.hit): mtus[identity(port.hit)] for port in odd}
    most = max((netdev.mtu_bytes or 0 for port, netdev in mtus.items() if port not in small), default=9000)
    names = [netdev.name for netdev in small.values() if nccl_hca.is_name(netdev.name)]
    described = []
    for few, netdev in zip(odd, small.values(), strict=True):
        packets = f"MTU {netdev.mtu_bytes}, so RDMA packets of {verbs_mtu(netdev.mtu_bytes or 0)} bytes"
        described.append((few.hit, f"{netdev.name} has {packets}; {few.peers} similar ports have {few.usual:g}"))
    yield port_draft(
        recording,
        described,
        f"smaller packet size (MTU) than {'its' if len(odd) == 1 else 'their'} peers",
        by_administrator(
            f"Set the MTU to {most}, as on the peers, if the switch supports it",
            *(f"sudo ip link set dev {name} mtu {most}" for name in names[:8]),
            cost="disturbs open connections; packets are lost if the MTU is too large for the switch",
            undo="restore the previous MTU",
        ),
        detail="Both ends of a connection use the smaller size, so this port slows all its peers.",
    )


@rule("DD575", "rdma-rails-differ-between-nodes", Consequence.SLOWER, RdmaFact)
def rdma_rails_differ_between_nodes(recording: Recording) -> Iterator[Draft]:
    """The number, kind or rate of RDMA ports differs between nodes.

    Finds: For NCCL on several nodes that all have RDMA, reports different numbers of ports that NCCL uses, different
        link layers, or different rates. Severity is error if one node has a third of another node's rate or less, or if
        ports cannot connect to each other. Otherwise, it is warning. Ports that are down, slow or not accessible to the
        job have separate findings, and nodes with such ports are not compared.
    Why: NCCL builds its rings from the ports of each node, and all rings run at the speed of the slowest node. An
        InfiniBand port cannot connect to an Ethernet port.
    Remedy: Use nodes of one kind, or set NCCL_IB_HCA to ports that all nodes have.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    named_already = {odd.hit[0] for odd in (*odd_by_state(recording), *odd_by_rate(recording))}
    compared: dict[int, tuple[tuple[str, float], ...]] = {}
    for node in users(recording):
        own = [(hca, port) for hca, port in node.fact.ports() if is_of_a_card(hca)]
        reported = any(port.state in UNCONFIGURED or hca.device_problem for hca, port in own)  # other rules do it
        chosen = node.fact.chosen()
        if chosen and not reported and node.node not in named_already:
            rails = sorted((port.link_layer or "", port.rate_gbit_per_s or 0.0) for _, port in chosen)
            compared[node.node] = tuple(rails)
    apart = split({node: (rails, _in_words(rails)) for node, rails in compared.items()})
    if apart is None:
        return
    layers = {frozenset(layer for layer, _ in rails) for rails in compared.values()}
    strangers = any(not layer & layer_elsewhere for layer in layers for layer_elsewhere in layers)
    rates = [sum(rate for _, rate in rails) for rails in compared.values()]
    yield likely(
        odd_culprits(recording, apart),
        f"RDMA ports differ between nodes: {values_with_nodes(recording, apart)}",
        Evidence(text=values_with_nodes(recording, apart)),
        remedy(
            "Compare the nodes' devices, then use nodes of one type or one NCCL_IB_HCA for all",
            "ls -l /sys/class/infiniband",
            "ibdev2netdev",
            scope="cluster",
            cost="a different choice of nodes",
            untried="requires other nodes",
        ),
        detail="InfiniBand ports cannot connect to Ethernet ports."
        if strangers
        else "NCCL's rings run at the speed of the slowest node.",
        severity=Severity.ERROR if strangers else of_detour(max(rates), min(rates)),
    )


def _in_words(rails: tuple[tuple[str, float], ...]) -> str:
    kinds = dict.fromkeys(rails)
    return " + ".join(f"{rails.count(kind)} x {kind[0]} at {kind[1]:g} Gb/s" for kind in kinds)


@rule("DD564", "rdma-firmware-differs", Consequence.KNOWN, RdmaFact)
def rdma_firmware_differs(recording: Recording) -> Iterator[Draft]:
    """Devices of one model have different firmware, on one node or between nodes.

    Finds: Reports devices with the same board ID (PSID) and different firmware versions. Severity is info, because most
        combinations work.
    Why: If one rail is slower or drops out, this is the first difference to check.
    Remedy: Install the same firmware on all devices of a model.
    See: https://docs.nvidia.com/networking/display/mftv4270/mlxfwmanager
    """
    boards: dict[str, dict[str, list[Hit]]] = {}
    for port_at in hits_of(recording, lambda hca, port: is_of_a_card(hca) and port.number == 1):
        _, hca, _ = port_at
        if hca.board_id and hca.firmware:
            boards.setdefault(hca.board_id, {}).setdefault(hca.firmware, []).append(port_at)
    for board, versions in boards.items():
        if len(versions) > 1:
            counts = sorted(versions.items(), key=lambda version: (-len(version[1]), version[0]))
            few = [port_at for _, hits in counts[1:] for port_at in hits]
            usual_one = 2 * len(counts[0][1]) > len(counts[0][1]) + len(few)
            listed = [f"{version} on {len(hits)} ({_whose(recording, hits)})" for version, hits in counts]
            names = name_list([version for version, _ in counts])
            yield possible(
                (
                    node_culprit(recording, node, kind="nic", name=hca.name)
                    for node, hca, _ in (few if usual_one else ())
                ),
                f"RDMA devices of model {board} have different firmware: {names}",
                Evidence(text="; ".join(listed[:6])),
                remedy(
                    "Install one firmware on all devices of the model at the next maintenance",
                    "sudo mlxfwmanager --query",
                    scope="cluster",
                    cost="administrator access and a device reset",
                    untried="ddp-doctor does not change firmware",
                ),
                detail="Most versions work together. It is the first difference to check if a rail misbehaves.",
            )


def _whose(recording: Recording, hits: list[Hit]) -> str:
    nodes = list(dict.fromkeys(node for node, _, _ in hits))
    if len(nodes) > 1:
        return hosts(recording, nodes)
    return f"{name_list([hca.name for _, hca, _ in hits])} of {host(recording, nodes[0])}"


@rule("DD565", "rdma-link-flaps", Consequence.RISK, RdmaFact)
def rdma_link_flaps(recording: Recording) -> Iterator[Draft]:
    """An RDMA link goes down far more often than its peers.

    Finds: Reports active ports whose link went down at least ten more times than is usual for its peers on the node,
        and at least once per day since the node started. On a single node, severity is info.
    Why: A link that goes down for a second ends NCCL's connection after its retries: the job fails with "Got completion
        … status 12", often after hours of training.
    Remedy: Check the cable, the transceiver and the switch port.
    See: https://docs.kernel.org/admin-guide/abi-stable.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout
    """
    flapping = [port_at for node in recording.facts(RdmaFact) for port_at in _flapping(node)]
    if flapping:
        yield port_draft(
            recording,
            flapping,
            "the link goes up and down",
            look_at_link(flapping, "link is unsteady"),
            detail="NCCL's connections over it stall each time, and fail if that lasts longer than their retries.",
            severity=for_later_jobs(recording, Severity.WARNING),
            expected="a reboot of the node or the switch takes all links down together",
        )


def _flapping(node: FactAt[RdmaFact]) -> list[tuple[Hit, str]]:
    fact = node.fact
    active = [(hca, port) for hca, port in fact.ports() if port.is_active and is_of_a_card(hca)]
    counted = [((node.node, hca, port), _times_down(fact, port)) for hca, port in active]
    known = [(port_at, downs) for port_at, downs in counted if downs is not None]
    if fact.uptime_s is None:
        return []
    days = fact.uptime_s / DAY_S
    least = max(FLAPS, FLAPS_PER_DAY * days)
    return [
        (port_at, f"went down {downs:g} times; the node has been up for {days:.1f} days")
        for at, (port_at, downs) in enumerate(known)
        if downs - usual(downs_there for index, (_, downs_there) in enumerate(known) if index != at) >= least
    ]


def _times_down(fact: RdmaFact, port: Port) -> float | None:
    """Count how often the link went down, by its own counter or by its interface's, which counts up and down."""
    counted = port.counters.get("link_downed")
    netdev = fact.netdev(port) if port.is_roce else None
    if netdev is None or netdev.carrier_changes is None or netdev.slaves:
        return counted
    return max(counted or 0, netdev.carrier_changes // 2)
