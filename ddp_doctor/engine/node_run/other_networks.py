"""Other networks where all nodes could meet. The head selects them, so that all nodes test the same ones."""

from collections.abc import Mapping, Sequence

from ddp_doctor.agents.messages import Contact, NodeReport, OtherAddress
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.addresses import Held, Network, address_of, shared_networks
from ddp_doctor.knowledge.network.path_quality import OTHER_NETWORKS
from ddp_doctor.model.context import Interface, OtherWay


def contacts(node_reports: Mapping[int, NodeReport]) -> tuple[Contact, ...]:
    """Return the addresses of each node, by node rank."""
    try:
        networks = _other_networks(node_reports)
    except ValueError:  # a node reported an address that cannot exist
        networks = {}
    return tuple(
        Contact(
            **dict(node_report),
            node=node,
            other_addresses=tuple(
                OtherAddress(network=str(network), interface=held[node].interface.name, address=held[node].address)
                for network, held in networks.items()
            ),
        )
        for node, node_report in node_reports.items()
    )


def between(mine: Contact, peer: Contact) -> tuple[OtherWay, ...]:
    """Return the other paths from one node to another."""
    own = {here.network: here.interface for here in mine.other_addresses}
    return tuple(
        OtherWay(
            network=there.network, interface=own[there.network], peer_interface=there.interface, address=there.address
        )
        for there in peer.other_addresses
        if there.network in own
    )


def _other_networks(node_reports: Mapping[int, NodeReport]) -> dict[Network, dict[int, Held]]:
    """Return the fastest networks that all nodes share, without the network that the backend uses on all of them."""
    interfaces = {node: _interfaces(node_report) for node, node_report in node_reports.items()}
    taken: list[str | None] = []
    for node, node_report in node_reports.items():
        mine = [at.name for at in interfaces[node] if node_report.advertised in map(address_of, at.addresses)]
        taken.append(next(iter(mine), None))
    found: dict[Network, dict[int, Held]] = {}
    known = [taken]
    for network, held in shared_networks(interfaces).items():
        names: list[str | None] = [there.interface.name for there in held.values()]
        # True if a backend that is given the interface would use this address of it
        comes_first = all(address_of(of.interface.addresses[0]) == of.address for of in held.values())
        if names not in known and comes_first:
            known.append(names)
            found[network] = held
    fastest = sorted(
        found, key=lambda network: -min(held.interface.speed_mbps or 0 for held in found[network].values())
    )
    return {network: found[network] for network in fastest[:OTHER_NETWORKS]}


def _interfaces(node_report: NodeReport) -> Sequence[Interface]:
    """Return the interfaces that the node reported, which may be invalid. Raises ValueError."""
    for reading in node_report.readings:
        if reading.fact is not None and reading.fact.get("kind") == InterfacesFact.KIND:
            return InterfacesFact.model_validate(reading.fact).interfaces
    return ()
