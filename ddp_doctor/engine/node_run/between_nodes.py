"""What a run over several nodes needs on each of them: its surroundings, and the way for others to join."""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from ddp_doctor.agents import roll_call
from ddp_doctor.agents.messages import Begin, Contact
from ddp_doctor.engine.collect import collect
from ddp_doctor.engine.node_run import other_networks
from ddp_doctor.facts.interfaces import InterfacesFact
from ddp_doctor.knowledge.neighbours import neighbours
from ddp_doctor.model.check import Check
from ddp_doctor.model.context import Peer
from ddp_doctor.model.fact import Reading
from ddp_doctor.sources.nodes import LiveNodesContext
from ddp_doctor.starters.endpoint import resolve
from ddp_doctor.starters.place import Place
from ddp_doctor.views.interfaces import advertised


@dataclass(frozen=True)
class Surroundings:
    """One node among the others, for the checks between nodes."""

    node: int
    begin: Begin
    contacts: Mapping[int, Contact]
    env: Mapping[str, str]
    clock_offset_s: float | None  # against the head's clock

    def probe(self, checks: Sequence[Check], progress: Callable[[str], None]) -> list[Reading]:
        """Run the checks, each under its own deadline."""
        contacts = [self.contacts[rank] for rank in neighbours(self.node, len(self.contacts))]
        peers = tuple(
            Peer(
                contact.node,
                contact.hostname,
                contact.port,
                contact.advertised or contact.met_at,
                contact.met_at,
                other_networks.between(self.contacts[self.node], contact),
            )
            for contact in contacts
        )

        def context(deadline: float) -> LiveNodesContext:
            return LiveNodesContext(
                self.env,
                deadline,
                node=self.node,
                world=self.begin.world,
                level=self.begin.options.level,
                peers=peers,
                secret=self.begin.secret,
                clock_offset_s=self.clock_offset_s,
            )

        return collect(checks, context, progress)


def join_command(place: Place, fact: InterfacesFact | None) -> str:
    """What to type on the other hosts: the endpoint given, else this host by the name or address that leads here.

    A name that means the loopback address here may mean nothing on other hosts: then the address is given.
    """
    host, port = place.endpoint or (_leads_here(fact), roll_call.DEFAULT_PORT)
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"ddp-doctor run --nnodes {place.nnodes} --rdzv-endpoint {at}"


def _leads_here(fact: InterfacesFact | None) -> str:
    name = socket.gethostname()
    addresses, _ = resolve(name, 2.0)
    outside = [address for address in addresses if not ip_address(address.partition("%")[0]).is_loopback]
    return name if outside else (advertised(fact, "nccl") if fact else None) or name
