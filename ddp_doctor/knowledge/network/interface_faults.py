"""Faults of the addresses that the nodes of a run give to each other, before any node dials.

An address of 127.0.0.0/8, an address that two hosts have, and the address of a bridge for local containers are useless
to other nodes. Whether the job then fails depends on gloo's rule of which node dials which
(knowledge/network/addresses.py).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Literal, NamedTuple

from ddp_doctor.knowledge.network import addresses
from ddp_doctor.knowledge.network.interface_choice import Choice
from ddp_doctor.model.context import Interface

#: unusable: none found, or down; own-name: the host's name resolves to loopback; unresolved: the name does not resolve
#: to the host; hidden: useless to others.
Kind = Literal["unusable", "own-name", "unresolved", "hidden"]


class Offer(NamedTuple):
    """A node as one backend would present it to the other nodes."""

    node: int
    choice: Choice
    interfaces: tuple[Interface, ...]
    own_addresses: tuple[str, ...]  # addresses of the host's own name on that host
    backend: str
    setting: str | None = None  # the value of the variable that decided
    default_does: bool = False  # without that variable the others could reach it
    host: str = ""  # equal for two agents in one network namespace of one host

    @property
    def address(self) -> str:
        """The address that the node gives out, or "" if unknown."""
        return "" if self.choice.error else self.choice.address or ""


class Fault(NamedTuple):
    """The reason why an address is useless to others. ``why`` completes "…, for"; not ``sure``: a guess by name."""

    kind: Kind
    why: str
    sure: bool = True


def faults(offers: Sequence[Offer]) -> dict[int, Fault]:
    """Return the faults of the offers that are useless to the other nodes, by node."""
    if len({offer.host for offer in offers}) < 2:
        return {}  # all on one host: loopback is enough
    holders = Counter(address for address, _ in {(offer.address, offer.host) for offer in offers})
    found = ((offer.node, _fault(offer, shared=holders[offer.address] > 1)) for offer in offers)
    return {node: fault for node, fault in found if fault is not None}


def _fault(offer: Offer, *, shared: bool) -> Fault | None:
    choice = offer.choice
    if choice.error:
        return Fault("unusable", choice.error)
    if offer.address:
        return _fault_of_address(offer, shared=shared)
    return Fault("unresolved", choice.why, sure=False) if offer.backend == "gloo" else None


def _fault_of_address(offer: Offer, *, shared: bool) -> Fault | None:
    interface = offer.choice.interface or ""
    if addresses.is_loopback(offer.address):
        return _fault_of_loopback(offer)
    if _is_down(offer):
        return Fault("unusable", f"{interface} is down or not connected")
    if shared:
        return Fault("hidden", f"several nodes have {offer.address}")
    if addresses.is_own_bridge(interface):
        return Fault("hidden", f"{interface} looks like a bridge for containers of one host", sure=False)
    return None


def _fault_of_loopback(offer: Offer) -> Fault:
    means_itself = f"on every host, {offer.address} is the host itself"
    if offer.backend == "gloo" and offer.choice.setting is None:
        known = offer.address in offer.own_addresses
        return Fault("own-name", means_itself) if known else Fault("unresolved", offer.choice.why)
    if (offer.setting or "").startswith("^") and addresses.likely_interface(offer.interfaces):
        return Fault("unusable", f"only {offer.choice.interface} is left")
    return Fault("hidden", means_itself)


def _is_down(offer: Offer) -> bool:
    return any(interface.name == offer.choice.interface and not interface.running for interface in offer.interfaces)


def victims(sick: Sequence[Offer], offers: Iterable[Offer]) -> list[Offer]:
    """Return the nodes that cannot connect to an unhealthy one: with NCCL all nodes, with gloo those that must dial it.

    An unhealthy node whose link is down cannot dial its neighbors either. Two unhealthy nodes of one address family
    decide for all: the lowest address, and the lowest on another host.
    """
    if sick[0].backend != "gloo" or not sick[0].address:
        return [offer for offer in offers if any(sick_offer.host != offer.host for sick_offer in sick)]
    dialled = [*_lowest(sick, ipv6=False), *_lowest(sick, ipv6=True)]
    down = [offer for offer in sick if offer.address and _is_down(offer)]
    dead = {addresses.network_of(offer.interfaces, offer.address) for offer in down} - {None}

    def lies_in_a_dead_network(offer: Offer) -> bool:
        may_lie = bool(offer.address) and not _is_down(offer)
        return may_lie and any(network and ip_address(offer.address) in network for network in dead)

    return [
        offer
        for offer in offers
        if any(_dials(offer, sick_offer) for sick_offer in dialled) or lies_in_a_dead_network(offer)
    ]


def _lowest(sick: Sequence[Offer], *, ipv6: bool) -> list[Offer]:
    family = [offer for offer in sick if offer.address and addresses.is_ipv6(offer.address) == ipv6]
    ordered = sorted(family, key=lambda offer: addresses.packed(offer.address))
    return [*ordered[:1], *[offer for offer in ordered if offer.host != ordered[0].host][:1]]


def _dials(offer: Offer, peer: Offer) -> bool:
    """Return True if gloo at ``offer`` may dial the peer, on another host. Ports decide between equal addresses."""
    if offer.host == peer.host or not offer.address:
        return False
    mine, theirs = addresses.packed(offer.address), addresses.packed(peer.address)
    return len(mine) == len(theirs) and mine >= theirs


def is_fine(choice: Choice, interfaces: Iterable[Interface]) -> bool:
    """Return True if other nodes can reach the choice, as far as this host can tell."""
    offer = Offer(0, choice, tuple(interfaces), (), "")
    return bool(offer.address) and _fault(offer, shared=False) is None


def family_sides(offers: Sequence[Offer]) -> tuple[list[Offer], list[Offer]]:
    """Return the offers with IPv4 addresses, and the offers with IPv6 addresses."""
    old = [offer for offer in offers if offer.address and not addresses.is_ipv6(offer.address)]
    new = [offer for offer in offers if offer.address and addresses.is_ipv6(offer.address)]
    return old, new


def can_speak(offer: Offer, *, ipv6: bool) -> bool:
    """Return True if a running interface of the host has an address of the family that may lead to other hosts."""
    return addresses.likely_interface(offer.interfaces, ipv6=ipv6) is not None


def apart(offers: Sequence[Offer]) -> bool:
    """Return True if the chosen addresses are in different networks; False if one has no network."""
    networks = [addresses.network_of(offer.interfaces, offer.address) for offer in offers]
    return None not in networks and len(set(networks)) > 1


class Better(NamedTuple):
    """An interface for each node. ``shared``: all are in one network; otherwise they are only likely ones."""

    interfaces: dict[int, str]
    shared: bool


def better_interfaces(offers: Sequence[Offer], *, ipv6: bool | None = None) -> Better:
    """Return interfaces on a shared network, or each node's current or likely one.

    The current interface is kept if it is fine. A likely interface may lead to other hosts.
    """
    wrong = faults(offers)
    shared = addresses.shared_interface(
        {offer.node: offer.interfaces for offer in offers},
        ipv6=ipv6,
        in_use=frozenset(offer.address for offer in offers if offer.node not in wrong),
    )
    if shared:
        return Better(shared, shared=True)
    kept = {
        offer.node: offer.choice.interface
        if offer.node not in wrong and ipv6 is None
        else addresses.likely_interface(offer.interfaces, ipv6=ipv6)
        for offer in offers
    }
    return Better({node: name for node, name in kept.items() if name}, shared=False)
