"""Choices that are right on each node and do not fit together: other networks, other families."""

from collections.abc import Iterator

from ddp_doctor.checks.node.interfaces.offers import offers_of
from ddp_doctor.checks.node.interfaces.wording import culprits, evidence, reproduced_by
from ddp_doctor.facts.interfaces import InterfacesFact
from ddp_doctor.knowledge.interface_faults import apart, better_interfaces, can_speak, family_sides, faults
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import interfaces
from ddp_doctor.wording.findings import finding, possible

_WHY_ONE_FAMILY = {
    "gloo": "gloo refuses such a pair at once, on both nodes.",
    "NCCL": "Whoever has no address of the other family cannot dial there.",
}


@rule("DD523", "choices-in-different-networks", Severity.INFO, InterfacesFact)
def choices_in_different_networks(recording: Recording) -> Iterator[Draft]:
    """Nodes that choose addresses of different networks, although they share one.

    What it finds
        In a run of several nodes: no network holds all of the chosen addresses, and another one holds
        an address of every node. Information: routed clusters have a network for each node, and are well.

    Why it matters
        Where no route leads from one to the other, connections time out. Whether one does is measured by the
        check reach, not here.

    Remedy
        Where the paths fail, the interface that the nodes share, by its name on each.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
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
            f"{backend} takes addresses of different networks, though the nodes share one",
            evidence(recording, offers),
            interfaces.use_interface(recording, offers, better, offers),
            detail="Routers may well connect them. Where paths fail, the shared network is the one to take.",
        )


@rule("DD524", "address-families-differ", Severity.ERROR, InterfacesFact)
def address_families_differ(recording: Recording) -> Iterator[Draft]:
    """IPv4 on some nodes, IPv6 on others.

    What it finds
        In a run of several nodes: a backend that gives out an IPv4 address on some and an IPv6 address on
        others. With NCCL only a warning where every node has addresses of both.

    Why it matters
        gloo ends with "ss1.ss_family == ss2.ss_family. 2 vs 10" on every node. NCCL dials from what it has,
        which a node without the other family cannot.

    Remedy
        One family: GLOO_SOCKET_IFNAME or an entry in /etc/hosts, NCCL_SOCKET_FAMILY.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-family
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    offers = offers_of(recording)
    wrong = faults(offers)
    old, new = family_sides([offer for offer in offers if offer.node not in wrong])
    if not old or not new:
        return
    backend = interfaces.backend_name(old[0].backend)
    both = all(can_speak(one, ipv6=True) for one in old) and all(can_speak(one, ipv6=False) for one in new)
    fewer = min(old, new, key=len)
    sides = [interfaces.names(recording, (offer.node for offer in side)) for side in (new, old)]
    severity = Severity.WARNING if both and backend != "gloo" else Severity.ERROR
    mended = (interfaces.one_family(recording, [*old, *new]),)
    yield finding(
        culprits(recording, [*old, *new] if len(old) == len(new) else fewer),
        f"{backend} gives out IPv6 addresses on {sides[0]} and IPv4 addresses on {sides[1]}",
        evidence(recording, [new[0], old[0]]),
        *mended,
        confidence=Confidence.PROVED if backend == "gloo" else Confidence.LIKELY,
        detail=_WHY_ONE_FAMILY[backend],
        severity=severity,
        reproduced_by=reproduced_by(severity, mended),
    )
