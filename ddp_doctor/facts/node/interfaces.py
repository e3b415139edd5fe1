"""A node's network interfaces, and the backends' choices among them."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge.network.interface_choice import Choice
from ddp_doctor.model.context import Interface
from ddp_doctor.model.fact import Fact


class InterfacesFact(Fact):
    """The interfaces of one node, the addresses of its host name, and the backends' choices."""

    KIND: ClassVar[str] = "interfaces/1"

    interfaces: tuple[Interface, ...] = ()
    hostname: str = ""
    hostname_addresses: tuple[str, ...] = ()  # in the resolver's order
    hostname_error: str | None = None  # why there are none
    gloo: Choice
    nccl: Choice  # predicted from NCCL's rules
    libnccl: Choice | None = None  # the choice of the library itself
    settings: dict[str, str] = Field(default_factory=dict)  # the variables that choose an interface, if set
    port_range: tuple[int, int] | None = None  # ip_local_port_range: the ports the backends listen on
    host_id: str | None = None  # of the booted kernel and the network namespace; equal for the same interfaces
