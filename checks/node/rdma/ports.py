"""DD560-DD562, DD576: ports that are down, unserved or slower than their peers, and bonds that lost a link."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.node.rdma.nodes import (
    UNCONFIGURED,
    Odd,
    carries,
    for_later_jobs,
    hits_of,
    identity,
    is_between_nodes,
    is_cut_off,
    is_of_a_card,
    named_by_setting,
    odd_by_rate,
    odd_by_state,
    users,
)
from ddp_doctor.checks.node.rdma.wording import START_SUBNET_MANAGER, Hit, look_at_bond, look_at_link, port_draft
from ddp_doctor.facts.node.rdma import Hca, NetDevice, Port, RdmaFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
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
    named = _named_and_down(recording)
    for severity, hits in _by_severity(recording, odd, named).items():
        detail = "NCCL leaves it out without a warning, and other ports carry its traffic as well."
        yield port_draft(
            recording,
            hits,
            "the RDMA port is down" if len(hits) == 1 else "the RDMA ports are down",
            lambda port_at: _down_in_words(port_at, odd.get(identity(port_at)), named_by=identity(port_at) in named),
            look_at_link(hits, "A link that is down"),
            detail=detail,
            severity=severity,
        )


def _named_and_down(recording: Recording) -> dict[tuple[int, str, int], tuple[Hit, bool]]:
    """The ports that NCCL_IB_HCA asks for and that are down, and whether the node has another one."""
    return {
        (node.node, hca.name, port.number): ((node.node, hca, port), bool(node.fact.chosen()))
        for node in users(recording)
        for hca, port in node.fact.ports()
        if port.state == "DOWN" and named_by_setting(node.fact, hca, port)
    }


def _by_severity(
    recording: Recording, odd: dict[tuple[int, str, int], Odd], named: dict[tuple[int, str, int], tuple[Hit, bool]]
) -> dict[Severity, list[Hit]]:
    found: dict[Severity, list[Hit]] = {}
    failed = {(nic.view.node, nic.device) for nic in failed_nics(recording)}
    hits = {**{key: port_at for key, (port_at, _) in named.items()}, **{key: port.hit for key, port in odd.items()}}
    for key in sorted(hits):
        last = (key in named and not named[key][1]) or (key in odd and is_cut_off(recording, key[0]))
        severity = Severity.ERROR if last else for_later_jobs(recording, Severity.WARNING)
        if last or (key[0], hits[key][1].bus_id) not in failed:
            found.setdefault(severity, []).append(hits[key])
    return found


def _down_in_words(port_at: Hit, odd: Odd | None, *, named_by: bool) -> str:
    port = port_at[2]
    peers = f"; {odd.peers} like it are up" if odd else ""
    asked = "; NCCL_IB_HCA names it" if named_by else ""
    return f"{port.state or 'unknown'}, physically {port.phys_state or 'unknown'}{peers}{asked}"


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
    hits = hits_of(recording, _waits_for_a_manager)
    groups: dict[Severity, list[Hit]] = {}
    for port_at in hits:
        if not is_between_nodes(recording):
            severity = Severity.INFO
        else:
            severity = Severity.ERROR if is_cut_off(recording, port_at[0]) else Severity.WARNING
        groups.setdefault(severity, []).append(port_at)
    for severity, some in groups.items():
        yield port_draft(
            recording,
            some,
            "the link is up, but no subnet manager has activated the port",
            lambda port_at: f"state {port_at[2].state}, LID {port_at[2].lid}, subnet manager's LID {port_at[2].sm_lid}",
            START_SUBNET_MANAGER,
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
    hits = list({**slowest, **{key: port.hit for key, port in odd.items()}}.values())
    if hits:
        yield port_draft(
            recording,
            hits,
            "the link runs at a lower speed than it should",
            lambda port_at: _slow_in_words(port_at, odd.get(identity(port_at))),
            look_at_link(hits, "A link that runs at a lower speed"),
            detail="NCCL's rings go at the pace of their slowest link.",
            severity=for_later_jobs(recording, Severity.WARNING),
        )


def _is_at_slowest_speed(hca: Hca, port: Port) -> bool:
    """InfiniBand at SDR, of 2001, on a card of 2014 or later: the driver mlx5_core serves no other."""
    sdr = port.link_layer == "InfiniBand" and "SDR)" in (port.rate or "")
    return carries(hca, port) and hca.driver == "mlx5_core" and sdr


def _slow_in_words(port_at: Hit, odd: Odd | None) -> str:
    than = f"{odd.peers} like it have {odd.usual:g} Gb/s" if odd else "the device can do 100 Gb/s or more"
    return f"{port_at[2].rate}; {than}"


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
        yield _draft(recording, some, severity)


def _draft(recording: Recording, bonds: Sequence[_Bond], severity: Severity) -> Draft:
    by_hit = {id(bond.hit): bond for bond in bonds}
    names = dict.fromkeys((bond.netdev.name, " and ".join(netdev.name for netdev in bond.lost())) for bond in bonds)
    what = "; ".join(f"its bond {bond} has lost {slaves}" for bond, slaves in list(names)[:2])
    return port_draft(
        recording,
        [bond.hit for bond in bonds],
        what if len(names) < 3 else "their bonds have lost links",
        lambda port_at: _state(by_hit[id(port_at)]),
        look_at_bond(bonds[0].netdev.name, [netdev.name for netdev in bonds[0].lost()]),
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


def _state(bond: _Bond) -> str:
    each = ", ".join(f"{slave.name} {slave.mii_status or 'unknown'}" for slave in bond.slaves)
    return f"{bond.netdev.name} ({bond.netdev.bond_mode or 'mode unknown'}): {each}"
