"""DD576: a bond under RDMA that has lost one of its links."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.node.rdma.nodes import for_later_jobs, is_of_a_card
from ddp_doctor.checks.node.rdma.wording import Hit, look_at_bond, port_draft
from ddp_doctor.facts.node.rdma import NetDevice, RdmaFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule


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
        return any((one.carrier_up_count or 0) > 0 for one in self.lost())


@rule("DD576", "rdma-bond-lost-a-link", Severity.WARNING, RdmaFact)
def lost_a_link(recording: Recording) -> Iterator[Draft]:
    """A bond that carries RDMA works with fewer links than it was made of.

    What it finds
        A slave that the bonding driver holds for down, beside one that is up, in the bond over an active RoCE
        port: a warning where that slave had its link since the machine started, or where bonds of other
        nodes or cards are whole. Else information, as in a run of one node: some sites make bonds of two ports
        and lay one cable. A bond of one slave, and one whose links nobody watches (miimon=0), is not judged.

    Why it matters
        The RDMA port stays active and shows its usual rate, with half the cables behind it: half the rate, or
        in mode active-backup the last link. NCCL's rings go at the pace of their slowest port.

    Remedy
        The cable, the transceiver or the switch port of the slave that is down.

    References
        https://docs.kernel.org/networking/bonding.html
        drivers/net/bonding/bond_sysfs_slave.c of the kernel: mii_status
    """
    bonds = [bond for seen in recording.facts(RdmaFact) for bond in _bonds(seen.node, seen.fact)]
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
    names = dict.fromkeys((bond.netdev.name, _names(bond.lost())) for bond in bonds)
    what = "; ".join(f"its bond {bond} has lost {slaves}" for bond, slaves in list(names)[:2])
    return port_draft(
        recording,
        [bond.hit for bond in bonds],
        what if len(names) < 3 else "their bonds have lost links",
        lambda hit: _state(by_hit[id(hit)]),
        look_at_bond(bonds[0].netdev.name, [one.name for one in bonds[0].lost()]),
        detail="The RDMA port stays active and shows its usual rate, with fewer cables behind it.",
        severity=severity,
        confidence=Confidence.PROVED,
    )


def _bonds(node: int, fact: RdmaFact) -> Iterator[_Bond]:
    netdevs = {one.name: one for one in fact.netdevs}
    for hca, port in fact.ports():
        if port.is_active and is_of_a_card(hca):
            over = (netdevs[name] for name in port.netdevs if name in netdevs)
            bond = next((one for one in over if one.slaves), None)
            if bond is not None:
                slaves = tuple(netdevs[name] for name in bond.slaves if name in netdevs)
                yield _Bond((node, hca, port), bond, slaves)


def _names(netdevs: Sequence[NetDevice]) -> str:
    return " and ".join(one.name for one in netdevs)


def _state(bond: _Bond) -> str:
    each = ", ".join(f"{slave.name} {slave.mii_status or 'not told'}" for slave in bond.slaves)
    return f"{bond.netdev.name} ({bond.netdev.bond_mode or 'mode not told'}): {each}"
