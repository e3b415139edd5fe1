"""DD560-DD562, DD576: ports that are down, unserved or slower than their peers, and bonds that lost a link."""

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
    users,
)
from ddp_doctor.checks.node.rdma.wording import Hit, look_at_bond, look_at_link, port_draft
from ddp_doctor.facts.node.rdma import Hca, NetDevice, Port, RdmaFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.views.kernel_log import failed_nics


@rule("DD560", "rdma-port-down", Severity.WARNING, RdmaFact)
def rdma_port_down(recording: Recording) -> Iterator[Draft]:
    """An RDMA port that is down while those that it should be like are up.

    Finds: A port that is down, where at most a quarter of four or more of its model on the node, or of its name on all
        nodes, is; or all of its model on a node, while other nodes have them up; or that NCCL_IB_HCA names. An error
        where NCCL_IB_HCA names no port that is up, or the node has none left of the kind that others use. Silent,
        unless an error, where the NIC's firmware failed (DD336). Information in a run of one node. Second ports of
        cards, virtual functions and EFA are left alone.
    Why: NCCL leaves the port out without a word. Its GPU reaches other nodes through a neighbour's port, and the ranks
        that share one set the pace for all.
    Remedy: The cable, the transceiver or the switch port. Until then NCCL does with the others.
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
            peers = f"; {odd[key].peers} like it are up" if key in odd else ""
            asked = "; NCCL_IB_HCA names it" if key in named else ""
            words = f"{port.state or 'unknown'}, physically {port.phys_state or 'unknown'}{peers}{asked}"
            severity = Severity.ERROR if last else for_later_jobs(recording, Severity.WARNING)
            grades.setdefault(severity, []).append((hits[key], words))
    for severity, described in grades.items():
        yield port_draft(
            recording,
            described,
            "the RDMA port is down" if len(described) == 1 else "the RDMA ports are down",
            look_at_link(described, "A link that is down"),
            detail="NCCL leaves it out without a warning, and other ports carry its traffic as well.",
            severity=severity,
        )


@rule("DD561", "no-subnet-manager", Severity.ERROR, RdmaFact)
def no_subnet_manager(recording: Recording) -> Iterator[Draft]:
    """InfiniBand ports with a link that no subnet manager has brought up.

    Finds: Ports in state INIT or ARMED whose link is up. An error for NCCL on several nodes where the node has no other
        port, or none but Ethernet beside nodes with InfiniBand; a warning where other ports do; else information.
    Why: Such a port carries no traffic. NCCL takes other ports, or TCP, without a word, and cannot connect to nodes
        that have InfiniBand.
    Remedy: A subnet manager in the fabric, or the port let into its partition.
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
            "the link is up, but no subnet manager has activated the port",
            by_administrator(
                "See that a subnet manager runs in this fabric: opensm on one host, or the switch's own",
                "sudo sminfo   # who is the subnet manager",
                "ibstat",
                scope="cluster",
                cost="an administrator's work; none for running jobs",
                references=("https://docs.kernel.org/infiniband/index.html",),
            ),
            detail="An InfiniBand port carries nothing before a subnet manager has given it an address.",
            severity=severity,
        )


def _waits_for_a_manager(hca: Hca, port: Port) -> bool:
    waits = port.state in UNCONFIGURED and port.phys_state == "LinkUp"
    return is_of_a_card(hca) and port.link_layer == "InfiniBand" and waits


@rule("DD562", "rdma-port-slower-than-peers", Severity.WARNING, RdmaFact)
def rdma_port_slower_than_peers(recording: Recording) -> Iterator[Draft]:
    """An RDMA link that came up slower than those that it should be like.

    Finds: An active port with a lower rate than three quarters of four or more of its model on the node, or of its name
        on all nodes; an InfiniBand link of a ConnectX-4 or newer at SDR speed. Information in a run of one node.
    Why: A bad cable or transceiver leaves a link with fewer lanes or a slower speed. NCCL's rings go at the pace of
        their slowest link.
    Remedy: Reseat or replace the cable; look for a speed that the switch port forces.
    See: https://www.infinibandta.org/infiniband-roadmap/
    """
    odd = {identity(port.hit): port for port in odd_by_rate(recording)}
    slowest = {identity(port_at): port_at for port_at in hits_of(recording, _is_at_slowest_speed)}
    described = []
    for key, port_at in {**slowest, **{key: port.hit for key, port in odd.items()}}.items():
        than = "the device can do 100 Gb/s or more"
        if key in odd:
            than = f"{odd[key].peers} like it have {odd[key].usual:g} Gb/s"
        described.append((port_at, f"{port_at[2].rate}; {than}"))
    if described:
        yield port_draft(
            recording,
            described,
            "the link runs at a lower speed than it should",
            look_at_link(described, "A link that runs at a lower speed"),
            detail="NCCL's rings go at the pace of their slowest link.",
            severity=for_later_jobs(recording, Severity.WARNING),
        )


def _is_at_slowest_speed(hca: Hca, port: Port) -> bool:
    """InfiniBand at SDR, of 2001, on a card of 2014 or later: the driver mlx5_core serves no other."""
    sdr = port.link_layer == "InfiniBand" and "SDR)" in (port.rate or "")
    return carries(hca, port) and hca.driver == "mlx5_core" and sdr


@dataclass(frozen=True)
class _Bond:
    """The bond over an RDMA port, and its slaves."""

    hit: Hit
    netdev: NetDevice
    slaves: tuple[NetDevice, ...]

    def lost(self) -> tuple[NetDevice, ...]:
        """The slaves that are down while another is up."""
        down = tuple(slave for slave in self.slaves if slave.mii_status == "down")
        return down if any(slave.mii_status == "up" for slave in self.slaves) else ()

    def in_words(self) -> str:
        """The bond and its slaves: "bond0 (802.3ad): eth0 up, eth1 down"."""
        each = ", ".join(f"{slave.name} {slave.mii_status or 'unknown'}" for slave in self.slaves)
        return f"{self.netdev.name} ({self.netdev.bond_mode or 'mode unknown'}): {each}"

    def had_them(self) -> bool:
        """Whether a lost slave had its link since the machine started."""
        return any((netdev.carrier_up_count or 0) > 0 for netdev in self.lost())


@rule("DD576", "rdma-bond-lost-a-link", Severity.WARNING, RdmaFact)
def rdma_bond_lost_a_link(recording: Recording) -> Iterator[Draft]:
    """A bond that carries RDMA works with fewer links than it was made of.

    Finds: A slave that the bonding driver holds for down, beside one that is up, in the bond over an active RoCE port:
        a warning where that slave had its link since the machine started, or where bonds of other nodes or cards are
        whole. Else information, as in a run of one node: some sites make bonds of two ports and lay one cable. A bond
        of one slave, and one whose links nobody watches (miimon=0), is not judged.
    Why: The RDMA port stays active and shows its usual rate, with half the cables behind it: half the rate, or in mode
        active-backup the last link. NCCL's rings go at the pace of their slowest port.
    Remedy: The cable, the transceiver or the switch port of the slave that is down.
    See: https://docs.kernel.org/networking/bonding.html
        drivers/net/bonding/bond_sysfs_slave.c of the kernel: mii_status
    """
    bonds = [bond for node in recording.facts(RdmaFact) for bond in _bonds(node.node, node.fact)]
    whole = any(len(bond.slaves) > 1 and not bond.lost() for bond in bonds)
    grades: dict[Severity, list[_Bond]] = {}
    for bond in bonds:
        if bond.lost():
            sure = whole or bond.had_them()
            severity = for_later_jobs(recording, Severity.WARNING) if sure else Severity.INFO
            grades.setdefault(severity, []).append(bond)
    for severity, some in grades.items():
        names = dict.fromkeys((bond.netdev.name, " and ".join(netdev.name for netdev in bond.lost())) for bond in some)
        what = "; ".join(f"its bond {bond} has lost {slaves}" for bond, slaves in list(names)[:2])
        yield port_draft(
            recording,
            [(bond.hit, bond.in_words()) for bond in some],
            what if len(names) < 3 else "their bonds have lost links",
            look_at_bond(some[0].netdev.name, [netdev.name for netdev in some[0].lost()]),
            detail="The RDMA port stays active and shows its usual rate, with fewer cables behind it.",
            severity=severity,
            confidence=Confidence.PROVED,
        )


def _bonds(node: int, fact: RdmaFact) -> Iterator[_Bond]:
    netdevs = {netdev.name: netdev for netdev in fact.netdevs}
    for hca, port in fact.ports():
        if port.is_active and is_of_a_card(hca):
            over = (netdevs[name] for name in port.netdevs if name in netdevs)
            bond = next((master for master in over if master.slaves), None)
            if bond is not None:
                slaves = tuple(netdevs[name] for name in bond.slaves if name in netdevs)
                yield _Bond((node, hca, port), bond, slaves)
