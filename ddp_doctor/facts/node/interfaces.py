"""A node's network interfaces, and what the backends choose of them."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge.network.interface_choice import Choice
from ddp_doctor.model.context import Interface
from ddp_doctor.model.fact import Fact


class InterfacesFact(Fact):
    """One node's interfaces, what its own name means there, and what the backends choose."""

    KIND: ClassVar[str] = "interfaces/1"

    interfaces: tuple[Interface, ...] = ()
    hostname: str = ""
    hostname_addresses: tuple[str, ...] = ()  # of its own name, in the resolver's order
    hostname_error: str | None = None  # why none is known
    gloo: Choice
    nccl: Choice  # predicted from NCCL's rules
    libnccl: Choice | None = None  # what the library itself chose
    settings: dict[str, str] = Field(default_factory=dict)  # the variables that choose an interface, where set
    port_range: tuple[int, int] | None = None  # ip_local_port_range: the ports the backends listen on
    host_id: str | None = None  # of the booted kernel and the network namespace: of one set of interfaces
