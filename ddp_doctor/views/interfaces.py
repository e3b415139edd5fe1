"""What is recorded of one node's network interfaces, and what others ask of it."""

from collections.abc import Mapping

from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.addresses import shared_interface
from ddp_doctor.knowledge.network.interface_choice import Choice, gloo_choice, nccl_choice
from ddp_doctor.knowledge.network.interface_faults import Offer, is_fine
from ddp_doctor.model.recording import FactAt


def chosen(fact: InterfacesFact, backend: str) -> Choice:
    """What the backend takes on this node: the library's own word where it was asked."""
    return fact.gloo if backend == "gloo" else fact.libnccl or fact.nccl


def advertised(fact: InterfacesFact, backend: str) -> str | None:
    """The address that the backend gives to the other nodes; None where it finds none or it is not known."""
    choice = chosen(fact, backend)
    return None if choice.error else choice.address


def common_interface(facts: Mapping[int, InterfacesFact]) -> dict[int, str]:
    """For each node (by its rank) its interface in a network that all share; empty where there is none."""
    return shared_interface({node: fact.interfaces for node, fact in facts.items()})


def offer_of(seen: FactAt[InterfacesFact], backend: str) -> Offer:
    """The node as this backend presents it to the others."""
    fact, choice = seen.fact, chosen(seen.fact, backend)
    without = {name: value for name, value in fact.settings.items() if name != choice.setting}
    default = (
        gloo_choice(fact.interfaces, without, fact.hostname_addresses)
        if backend == "gloo"
        else nccl_choice(fact.interfaces, without)
    )
    held = " ".join(address for interface in fact.interfaces for address in interface.addresses)
    return Offer(
        node=seen.node,
        choice=choice,
        interfaces=fact.interfaces,
        own_addresses=fact.hostname_addresses,
        backend=backend,
        setting=fact.settings.get(choice.setting or ""),
        default_does=is_fine(default, fact.interfaces),
        host=f"{fact.host_id or fact.hostname} {held}",
    )
