"""Interfaces and addresses that are no use to the other nodes, or right on each node and do not fit together."""

from collections.abc import Iterator

from ddp_doctor.checks.node.interfaces import wording
from ddp_doctor.checks.node.interfaces.wording import (
    culprits,
    draft,
    evidence,
    groups,
    offers_of,
    reproduced_by,
    severity_unless_used,
)
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.interface_choice import GLOO_IFNAME
from ddp_doctor.knowledge.network.interface_faults import apart, better_interfaces, can_speak, family_sides, faults
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import interfaces
from ddp_doctor.settings import values
from ddp_doctor.settings.wording import shown
from ddp_doctor.wording.findings import finding, possible
from ddp_doctor.wording.nodes import hosts

_WHY_ONE_FAMILY = {
    "gloo": "gloo refuses such a pair at once, on both nodes.",
    "NCCL": "Whoever has no address of the other family cannot dial there.",
}


@rule("DD523", "choices-in-different-networks", Severity.INFO, InterfacesFact)
def choices_in_different_networks(recording: Recording) -> Iterator[Draft]:
    """Nodes that choose addresses of different networks, although they share one.

    Finds: In a run of several nodes: no network holds all of the chosen addresses, and another one holds an address of
        every node. Information: routed clusters have a network for each node, and are well.
    Why: Where no route leads from one to the other, connections time out. Whether one does is measured by the check
        reach, not here.
    Remedy: Where the paths fail, the interface that the nodes share, by its name on each.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    offers = offers_of(recording)
    if not offers or faults(offers) or not apart(offers):
        return
    better = better_interfaces(offers)
    sides = family_sides(offers)
    if better.shared and not all(sides):
        backend = interfaces.backend_name(offers[0].backend)
        yield possible(
            culprits(recording, offers),
            f"{backend} uses addresses of different networks, though the nodes share one",
            evidence(recording, offers),
            wording.use_interface(recording, offers, better, offers),
            detail="Routers may well connect them. If connections fail, use the shared network.",
        )


@rule("DD524", "address-families-differ", Severity.ERROR, InterfacesFact)
def address_families_differ(recording: Recording) -> Iterator[Draft]:
    """IPv4 on some nodes, IPv6 on others.

    Finds: In a run of several nodes: a backend that gives out an IPv4 address on some and an IPv6 address on others.
        With NCCL only a warning where every node has addresses of both.
    Why: gloo ends with "ss1.ss_family == ss2.ss_family. 2 vs 10" on every node. NCCL dials from what it has, which a
        node without the other family cannot.
    Remedy: One family: GLOO_SOCKET_IFNAME or an entry in /etc/hosts, NCCL_SOCKET_FAMILY.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-family
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    offers = offers_of(recording)
    wrong = faults(offers)
    old, new = family_sides([offer for offer in offers if offer.node not in wrong])
    if not old or not new:
        return
    backend = interfaces.backend_name(old[0].backend)
    both = all(can_speak(offer, ipv6=True) for offer in old) and all(can_speak(offer, ipv6=False) for offer in new)
    fewer = min(old, new, key=len)
    sides = [hosts(recording, (offer.node for offer in side)) for side in (new, old)]
    severity = Severity.WARNING if both and backend != "gloo" else Severity.ERROR
    offered = (wording.one_family(recording, [*old, *new]),)
    yield finding(
        culprits(recording, [*old, *new] if len(old) == len(new) else fewer),
        f"{backend} uses IPv6 addresses on {sides[0]} and IPv4 addresses on {sides[1]}",
        evidence(recording, [new[0], old[0]]),
        *offered,
        confidence=Confidence.PROVED if backend == "gloo" else Confidence.LIKELY,
        detail=_WHY_ONE_FAMILY[backend],
        severity=severity,
        reproduced_by=reproduced_by(severity, offered),
    )


@rule("DD520", "own-host-name-resolves-to-loopback", Severity.ERROR, InterfacesFact)
def own_host_name_resolves_to_loopback(recording: Recording) -> Iterator[Draft]:
    """A host whose own name means 127.0.0.1 or 127.0.1.1 there, which gloo then gives to the other nodes.

    Finds: In a run of several nodes, without GLOO_SOCKET_IFNAME: nodes whose own name resolves to loopback, as Debian's
        installer writes it into /etc/hosts. An error where some node must dial that address; a warning where none does;
        information where the run uses NCCL, which asks for no name.
    Why: gloo gives that address to the others. Of two sides the one with the larger address dials, so in 192.168.x and
        172.16.x networks the others dial themselves, and blame their own ranks. In 10.x networks the node with
        127.0.1.1 dials, and the job runs until a node with a larger address joins.
    Remedy: GLOO_SOCKET_IFNAME with the interface that the nodes share, or the right address in /etc/hosts.
    See: https://docs.pytorch.org/docs/stable/distributed.html
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    for group in groups(offers_of(recording, "gloo"), "own-name", lambda offer: offer.choice.setting):
        several = len(group.sick) > 1
        resolve = "resolve their own host names" if several else "resolves its own host name"
        tells = "tells the other nodes that address"
        title = f"{group.nodes(recording)} {resolve} to {group.given_out}, and gloo {tells}"
        yield draft(recording, group, title, severity_unless_used(recording, group))


@rule("DD526", "own-host-name-does-not-resolve", Severity.ERROR, InterfacesFact)
def own_host_name_does_not_resolve(recording: Recording) -> Iterator[Draft]:
    """A host whose own name leads to no address that it has, so that gloo falls back to loopback.

    Finds: In a run of several nodes, without GLOO_SOCKET_IFNAME: nodes whose own name is unknown there, or is known
        with addresses that the node does not have. A warning where no node must dial 127.0.0.1, and where the resolver
        did not answer in time; information where the run uses NCCL.
    Why: torch warns ("Unable to resolve hostname to a (local) address") and gives 127.0.0.1 to the other nodes, which
        reach themselves. With a dead name server every rank waits for it first.
    Remedy: GLOO_SOCKET_IFNAME with the interface that the nodes share, or an entry in /etc/hosts.
    See: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, createDefaultDevice
    """
    for group in groups(offers_of(recording, "gloo"), "unresolved", lambda offer: bool(offer.address)):
        fallback = f"; gloo then tells the other nodes {group.given_out}" if group.given_out else ""
        why = group.fault.why.replace("its own name", "the host's own name")
        title = f"{group.nodes(recording)}: {why}{fallback}"
        yield draft(recording, group, title, severity=severity_unless_used(recording, group))


@rule("DD521", "no-usable-interface", Severity.ERROR, InterfacesFact)
def no_usable_interface(recording: Recording) -> Iterator[Draft]:
    """A backend that finds no interface, or one that is down, mostly for a setting.

    Finds: In a run of several nodes: GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names what is not there, has no address
        or is down; NCCL_SOCKET_IFNAME=^eth0, after which only loopback is left.
    Why: The ranks of that node fail at once, or give out an address that nobody reaches, and the ranks of all other
        nodes wait for them. A name that is right on one node may not exist on the next.
    Remedy: The interface that the nodes share, by its name on each, or no setting where the default does.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    for group in groups(offers_of(recording), "unusable", lambda offer: (offer.setting, offer.choice.error)):
        first = group.sick[0]
        if first.backend == "gloo" and first.setting and values.misread(GLOO_IFNAME, first.setting):
            continue  # DD122 names a value that gloo cannot take
        choice = f" with {shown(first.choice.setting, first.setting or '')}" if first.choice.setting else ""
        title = f"{group.backend} has no usable interface on {group.nodes(recording)}{choice}: {group.fault.why}"
        yield draft(recording, group, title)


@rule("DD522", "address-hidden-from-other-nodes", Severity.ERROR, InterfacesFact)
def address_hidden_from_other_nodes(recording: Recording) -> Iterator[Draft]:
    """A chosen address that is loopback, is the same on several nodes, or is of a bridge for containers.

    Finds: In a run of several nodes: such an address where a setting, a host name or NCCL's order leads to it. An error
        where some pair of nodes cannot connect, a warning where gloo's rule of who dials spares them, or where only the
        interface's name (docker0, virbr0) speaks against it.
    Why: Whoever dials 127.0.0.1 or the docker0 address 172.17.0.1 reaches itself. Nothing says so: gloo reports a
        refused connection on a healthy node, NCCL retries for a minute.
    Remedy: The interface that the nodes share, by its name on each, or no setting where the default does.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    for group in groups(offers_of(recording), "hidden", lambda offer: (offer.setting, offer.address)):
        first = group.sick[0]
        choice = f", because of {shown(first.choice.setting, first.setting or '')}" if first.choice.setting else ""
        title = (
            f"{group.backend} on {group.nodes(recording)} tells the other nodes the address {group.given_out}"
            f" ({first.choice.interface}){choice}: {group.fault.why}"
        )
        yield draft(recording, group, title)
