"""Addresses: which host an address leads to, which host dials which, and which networks several hosts share.

gloo makes one connection for each pair of ranks: the side with the larger address, byte by byte, dials the smaller one
(gloo/transport/tcp/device.cc, Device::isInitiator). A host that gives out 127.0.1.1 therefore still dials all of
10.0.0.0/8. It is dialed by all of 172.16.0.0/12 and 192.168.0.0/16, which then reach themselves.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from ddp_doctor.model.context import Interface

#: Bridges that a container engine, libvirt or LXC makes only for this host: docker0, docker's networks (br- and 12
#: hexadecimal digits), podman, CNI's default, containerd's nerdctl, LXC, VirtualBox, VMware.
_OWN_BRIDGES = re.compile(
    r"(docker|virbr|podman|cni-podman|nerdctl|lxcbr|lxdbr|vboxnet|vmnet)\d+(-nic)?|br-[0-9a-f]{12}"
)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Held(NamedTuple):
    """An address without its prefix length, and the interface that has it."""

    address: str
    interface: Interface


def address_of(with_prefix: str) -> str:
    """Return "10.0.0.1" for "10.0.0.1/24"."""
    return with_prefix.partition("/")[0]


def is_loopback(address: str) -> bool:
    """Return True if the address means the host itself on every host. False if the text is not an address."""
    try:
        return plain_address(address).is_loopback
    except ValueError:
        return False


def is_own_host(name: str) -> bool:
    """Return True if a connection to this name or address stays on the host; Linux connects 0.0.0.0 to itself."""
    return name.lower() in ("localhost", "localhost.localdomain", "0.0.0.0", "::") or is_loopback(name)  # noqa: S104 - compares


def plain_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address without its zone; an IPv4 address in a dual-stack form such as ``::ffff:10.0.0.1`` as IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def is_own_bridge(interface: str) -> bool:
    """Return True if such an interface usually leads only to containers or virtual machines of this host."""
    return _OWN_BRIDGES.fullmatch(interface) is not None


def is_ipv6(address: str) -> bool:
    """Return True for an IPv6 address."""
    return ":" in address


def packed(address: str) -> bytes:
    """Return the address as gloo compares it: in network order, without a scope."""
    return ipaddress.ip_address(address).packed


def network_of(interfaces: Sequence[Interface], address: str) -> Network | None:
    """Return the network of a host's address; None if the host lacks the address, or it is a single one (/32, /128)."""
    for interface in interfaces:
        for held in interface.addresses:
            if address_of(held) == address:
                network = ipaddress.ip_interface(held).network
                return network if network.num_addresses > 1 else None
    return None


def shared_interface(
    hosts: Mapping[int, Sequence[Interface]], *, ipv6: bool | None = None, in_use: frozenset[str] = frozenset()
) -> dict[int, str]:
    """Return each host's interface on a network (of the family) that all hosts have, or {} without such a network.

    Loopback, link-local and single addresses are not networks. A network with the same address on two hosts (every
    docker0) does not count. The network with the most addresses ``in_use`` is chosen, then the fastest, then the first.
    """
    shared = shared_networks(hosts, ipv6=ipv6)
    if not shared:
        return {}

    def worth(network: Network) -> tuple[int, int]:
        held = shared[network].values()
        used = sum(held_address.address in in_use for held_address in held)
        return used, min(held_address.interface.speed_mbps or 0 for held_address in held)

    return {host: held_address.interface.name for host, held_address in shared[max(shared, key=worth)].items()}


def shared_networks(
    hosts: Mapping[int, Sequence[Interface]], *, ipv6: bool | None = None
) -> dict[Network, dict[int, Held]]:
    """Return all networks (of the family) that each host has a distinct address in, in the first host's order."""
    offers = [_networks(interfaces, ipv6) for interfaces in hosts.values()]
    if not offers:
        return {}
    shared = reduce(lambda left, right: left & right, (set(offer) for offer in offers))
    usable = {}
    for network in offers[0]:
        if network not in shared or network.num_addresses == 1:
            continue
        held = {host: offer[network] for host, offer in zip(hosts, offers, strict=True)}
        if len({own.address for own in held.values()}) == len(held):
            usable[network] = held
    return usable


def _networks(interfaces: Sequence[Interface], ipv6: bool | None) -> dict[Network, Held]:
    """Return the first address and interface in each network (of the family) that may lead to other hosts."""
    found: dict[Network, Held] = {}
    for interface in interfaces:
        for held in interface.addresses if interface.running and not is_own_bridge(interface.name) else ():
            own = ipaddress.ip_interface(held)
            wanted = ipv6 is None or ipv6 == (own.version == 6)
            if wanted and not own.is_loopback and not own.is_link_local:
                found.setdefault(own.network, Held(address_of(held), interface))
    return found


def likely_interface(interfaces: Sequence[Interface], *, ipv6: bool | None = None) -> str | None:
    """Return the first running interface with an address (of the family) that may lead to other hosts, if any."""
    return next((interface.name for _, interface in _networks(interfaces, ipv6).values()), None)
