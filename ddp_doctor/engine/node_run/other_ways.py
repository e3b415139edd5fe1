"""The other networks in which all nodes of a run could meet: the head names them, so that all look at the same."""

from collections.abc import Mapping, Sequence

from ddp_doctor.agents.messages import Contact, Elsewhere, NodeReport
from ddp_doctor.facts.interfaces import InterfacesFact
from ddp_doctor.knowledge.addresses import Held, Network, address_of, shared_networks
from ddp_doctor.knowledge.network import OTHER_NETWORKS
from ddp_doctor.model.context import Interface, OtherWay


def contacts(cards: Mapping[int, NodeReport]) -> tuple[Contact, ...]:
    """Where each node can be dialled, by node rank."""
    try:
        elsewhere = _elsewhere(cards)
    except ValueError:  # a node told what cannot be
        elsewhere = {}
    return tuple(
        Contact(
            node=node,
            hostname=card.hostname,
            port=card.port,
            advertised=card.advertised,
            met_at=card.met_at,
            elsewhere=elsewhere.get(node, ()),
        )
        for node, card in cards.items()
    )


def between(mine: Contact, peer: Contact) -> tuple[OtherWay, ...]:
    """The other ways from one node to another."""
    own = {one.network: one.interface for one in mine.elsewhere}
    return tuple(
        OtherWay(
            network=one.network, interface=own[one.network], peer_interface=one.interface, address=one.address
        )
        for one in peer.elsewhere
        if one.network in own
    )


def _elsewhere(cards: Mapping[int, NodeReport]) -> dict[int, tuple[Elsewhere, ...]]:
    networks = _other_networks(cards)
    return {
        node: tuple(
            Elsewhere(network=str(network), interface=held[node].interface.name, address=held[node].address)
            for network, held in networks.items()
        )
        for node in cards
    }


def _other_networks(cards: Mapping[int, NodeReport]) -> dict[Network, dict[int, Held]]:
    """Those that all nodes share and that the backend does not take on all of them; the fastest ones."""
    interfaces = {node: _interfaces(card) for node, card in cards.items()}
    found: dict[Network, dict[int, Held]] = {}
    taken = [_taken(interfaces[node], card.advertised) for node, card in cards.items()]
    for network, held in shared_networks(interfaces).items():
        names = [one.interface.name for one in held.values()]
        if names != taken and all(map(_comes_first, held.values())):
            taken_too = any(
                [one.interface.name for one in other.values()] == names for other in found.values()
            )
            found |= {} if taken_too else {network: held}
    fastest = sorted(found, key=lambda one: -min(it.interface.speed_mbps or 0 for it in found[one].values()))
    return {network: found[network] for network in fastest[:OTHER_NETWORKS]}


def _comes_first(held: Held) -> bool:
    """Whether a backend that is told the interface would take this address of it."""
    return address_of(held.interface.addresses[0]) == held.address


def _taken(interfaces: Sequence[Interface], address: str) -> str | None:
    mine = (one.name for one in interfaces if address in map(address_of, one.addresses))
    return next(mine, None)


def _interfaces(card: NodeReport) -> Sequence[Interface]:
    """As the node told them; what it said may be anything. Raises ValueError."""
    for reading in card.readings:
        if reading.fact is not None and reading.fact.get("kind") == InterfacesFact.KIND:
            return InterfacesFact.model_validate(reading.fact).interfaces
    return ()
