"""DD560, DD561, DD562: ports that are down, that no subnet manager serves, or that are slower than their peers."""

from collections.abc import Iterator

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
from ddp_doctor.checks.node.rdma.wording import START_SUBNET_MANAGER, Hit, look_at_link, port_draft
from ddp_doctor.facts.node.rdma import Hca, Port, RdmaFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.kernel_log import failed_nics


@rule("DD560", "rdma-port-down", Severity.WARNING, RdmaFact)
def port_down(recording: Recording) -> Iterator[Draft]:
    """An RDMA port that is down while those that it should be like are up.

    What it finds
        A port that is down, where at most a quarter of four or more of its model on the node, or of its name
        on all nodes, is; or all of its model on a node, while other nodes have them up; or that NCCL_IB_HCA
        names. An error where NCCL_IB_HCA names no port that is up, or the node has none left of the kind that
        others use. Silent, unless an error, where the NIC's firmware failed (DD336). Information in a run of one
        node. Second ports of cards, virtual functions and EFA are left alone.

    Why it matters
        NCCL leaves the port out without a word. Its GPU reaches other nodes through a neighbour's port, and
        the ranks that share one set the pace for all.

    Remedy
        The cable, the transceiver or the switch port. Until then NCCL does with the others.

    References
        https://docs.kernel.org/admin-guide/abi-stable.html
    """
    odd = {identity(one.hit): one for one in odd_by_state(recording)}
    named = _named_and_down(recording)
    for severity, hits in _by_severity(recording, odd, named).items():
        detail = "NCCL leaves it out without a word, and other ports carry its traffic as well."
        yield port_draft(
            recording,
            hits,
            "the RDMA port is down" if len(hits) == 1 else "the RDMA ports are down",
            lambda hit: _seen_down(hit, odd.get(identity(hit)), named_by=identity(hit) in named),
            look_at_link(hits, "A link that is down"),
            detail=detail,
            severity=severity,
        )


def _named_and_down(recording: Recording) -> dict[tuple[int, str, int], tuple[Hit, bool]]:
    """The ports that NCCL_IB_HCA asks for and that are down, and whether the node has another one."""
    return {
        (seen.node, hca.name, port.number): ((seen.node, hca, port), bool(seen.fact.chosen()))
        for seen in users(recording)
        for hca, port in seen.fact.ports()
        if port.state == "DOWN" and named_by_setting(seen.fact, hca, port)
    }


def _by_severity(
    recording: Recording,
    odd: dict[tuple[int, str, int], Odd],
    named: dict[tuple[int, str, int], tuple[Hit, bool]],
) -> dict[Severity, list[Hit]]:
    found: dict[Severity, list[Hit]] = {}
    failed = {(one.view.node, one.device) for one in failed_nics(recording)}
    hits = {**{key: hit for key, (hit, _) in named.items()}, **{key: one.hit for key, one in odd.items()}}
    for key in sorted(hits):
        last = (key in named and not named[key][1]) or (key in odd and is_cut_off(recording, key[0]))
        severity = Severity.ERROR if last else for_later_jobs(recording, Severity.WARNING)
        if last or (key[0], hits[key][1].bus_id) not in failed:
            found.setdefault(severity, []).append(hits[key])
    return found


def _seen_down(hit: Hit, odd: Odd | None, *, named_by: bool) -> str:
    port = hit[2]
    peers = f"; {odd.peers} like it are up" if odd else ""
    asked = "; NCCL_IB_HCA names it" if named_by else ""
    return f"{port.state or 'unknown'}, physically {port.phys_state or 'unknown'}{peers}{asked}"


@rule("DD561", "no-subnet-manager", Severity.ERROR, RdmaFact)
def no_subnet_manager(recording: Recording) -> Iterator[Draft]:
    """InfiniBand ports with a link that no subnet manager has brought up.

    What it finds
        Ports in state INIT or ARMED whose link is up. An error for NCCL on several nodes where the node has no
        other port, or none but Ethernet beside nodes with InfiniBand; a warning where other ports do; else
        information.

    Why it matters
        Such a port carries no traffic. NCCL takes other ports, or TCP, without a word, and cannot connect to
        nodes that have InfiniBand.

    Remedy
        A subnet manager in the fabric, or the port let into its partition.

    References
        https://docs.nvidia.com/networking/display/mlnxofedv24010331/opensm
    """
    hits = hits_of(recording, _waits_for_a_manager)
    groups: dict[Severity, list[Hit]] = {}
    for hit in hits:
        if not is_between_nodes(recording):
            severity = Severity.INFO
        else:
            severity = Severity.ERROR if is_cut_off(recording, hit[0]) else Severity.WARNING
        groups.setdefault(severity, []).append(hit)
    for severity, some in groups.items():
        yield port_draft(
            recording,
            some,
            "the link is up, and no subnet manager has brought the port up",
            lambda hit: f"state {hit[2].state}, LID {hit[2].lid}, subnet manager's LID {hit[2].sm_lid}",
            START_SUBNET_MANAGER,
            detail="An InfiniBand port carries nothing before a subnet manager has given it an address.",
            severity=severity,
        )


def _waits_for_a_manager(hca: Hca, port: Port) -> bool:
    waits = port.state in UNCONFIGURED and port.phys_state == "LinkUp"
    return is_of_a_card(hca) and port.link_layer == "InfiniBand" and waits


@rule("DD562", "rdma-port-slower-than-peers", Severity.WARNING, RdmaFact)
def port_slower(recording: Recording) -> Iterator[Draft]:
    """An RDMA link that came up slower than those that it should be like.

    What it finds
        An active port with a lower rate than three quarters of four or more of its model on the node, or of
        its name on all nodes; an InfiniBand link of a ConnectX-4 or newer at SDR speed. Information in a run
        of one node.

    Why it matters
        A bad cable or transceiver leaves a link with fewer lanes or a slower speed. NCCL's rings go at the
        pace of their slowest link.

    Remedy
        Reseat or replace the cable; look for a speed that the switch port forces.

    References
        https://www.infinibandta.org/infiniband-roadmap/
    """
    odd = {identity(one.hit): one for one in odd_by_rate(recording)}
    slowest = {identity(hit): hit for hit in hits_of(recording, _is_at_slowest_speed)}
    hits = list({**slowest, **{key: one.hit for key, one in odd.items()}}.values())
    if hits:
        yield port_draft(
            recording,
            hits,
            "the link came up slower than it should",
            lambda hit: _seen_slow(hit, odd.get(identity(hit))),
            look_at_link(hits, "A link that came up slower"),
            detail="NCCL counts with the lower rate, and its rings go at the pace of their slowest link.",
            severity=for_later_jobs(recording, Severity.WARNING),
        )


def _is_at_slowest_speed(hca: Hca, port: Port) -> bool:
    """InfiniBand at SDR, of 2001, on a card of 2014 or later: the driver mlx5_core serves no other."""
    sdr = port.link_layer == "InfiniBand" and "SDR)" in (port.rate or "")
    return carries(hca, port) and hca.driver == "mlx5_core" and sdr


def _seen_slow(hit: Hit, odd: Odd | None) -> str:
    than = f"{odd.peers} like it have {odd.usual:g} Gb/s" if odd else "the device can do 100 Gb/s or more"
    return f"{hit[2].rate}; {than}"
