"""Faults of firewalls, links and the switch.

Filters on connections affect only TCP's first packet, so that existing connections persist, as with any stateful
firewall. No filter affects the loopback interface.
"""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lab.hosts import Host, Lab
from tests.lab.planted import Planted

CABLE = Path(__file__).with_name("cable.py")
NEW = "tcp flags & (syn | ack) == syn"  # the first packet of a connection
JUMBO, STANDARD = 9000, 1500
_numbers = itertools.count()


# Firewalls


def drop_port(host: Host, port: int = 29400) -> Planted:
    """New connections to one port vanish."""
    return _filter(host, incoming=f"{NEW} tcp dport {port} drop")


def reject_port(host: Host, port: int = 29400) -> Planted:
    """Refuse new connections to one port, as without a listener."""
    return _filter(host, incoming=f"{NEW} tcp dport {port} reject with tcp reset")


def prohibit_port(host: Host, port: int = 29400) -> Planted:
    """New connections to one port are answered "host unreachable", as firewalld does."""
    return _filter(host, incoming=f"{NEW} tcp dport {port} reject with icmpx admin-prohibited")


def drop_all_but(host: Host, port: int = 29400) -> Planted:
    """New connections to all ports but one vanish."""
    return _filter(host, incoming=f"{NEW} tcp dport != {port} drop")


def drop_all_but_on(host: Host, nic: str = "eth0", port: int = 29400) -> Planted:
    """New connections that come in there to all ports but one vanish; other interfaces are open."""
    return _rule(host, "inet", "input", f"iifname {nic} {NEW} tcp dport != {port} drop")


def reject_all_but(host: Host, port: int = 29400) -> Planted:
    """New connections to all ports but one are refused."""
    return _filter(host, incoming=f"{NEW} tcp dport != {port} reject with tcp reset")


def block_inbound(host: Host) -> Planted:
    """Block connections to the host; it can connect to all others."""
    return _filter(host, incoming=f"{NEW} drop")


def silence(host: Host) -> Planted:
    """Block all traffic of the host; its links stay up."""
    return _filter(host, incoming="drop", outgoing="drop")


def cut_path(host: Host, peer: Host) -> Planted:
    """Block all traffic between these two hosts; both reach all others."""
    address = _address(peer)
    return _filter(host, incoming=f"{address('saddr')} drop", outgoing=f"{address('daddr')} drop")


def no_route(host: Host, peer: Host) -> Planted:
    """The host has no route to the peer: connecting fails at once."""
    host.ip(f"route add unreachable {peer.address}")
    return Planted(lambda: host.ip(f"route delete unreachable {peer.address}"))


def apart(lab: Lab, first: int, port: int = 29400) -> Planted:
    """Between the hosts from this number on and those before it new connections to all ports but one vanish."""
    near, far = (
        ", ".join(lab.port(host) for host in lab.hosts if (host.index >= first) is is_far) for is_far in (False, True)
    )
    crossing = (f"iifname {{ {near} }} oifname {{ {far} }}", f"iifname {{ {far} }} oifname {{ {near} }}")
    rules = [_rule(lab.switch, "bridge", "forward", f"{way} {NEW} tcp dport != {port} drop") for way in crossing]
    return Planted(*(each.undo for each in rules))


# Links and the switch


def link_down(host: Host, nic: str = "eth0") -> Planted:
    """The interface is set down on the host."""
    host.ip(f"link set {nic} down")
    return Planted(lambda: host.ip(f"link set {nic} up"))


def cable_out(lab: Lab, host: Host, nic: str = "eth0") -> Planted:
    """The cable is pulled at the switch: the host's interface has no carrier."""
    port = lab.port(host, nic)
    lab.switch.ip(f"link set {port} down")
    return Planted(lambda: lab.switch.ip(f"link set {port} up"))


def dead_port(lab: Lab, host: Host, nic: str = "eth0") -> Planted:
    """The switch forwards nothing for the host, whose link stays up."""
    port, bridge = lab.port(host, nic), f"br{nic.removeprefix('eth')}"
    lab.switch.ip(f"link set {port} nomaster")
    return Planted(lambda: lab.switch.ip(f"link set {port} master {bridge}"))


def loss(lab: Lab, host: Host, percent: float = 5.0) -> Planted:
    """A part of all packets is lost on the way to and from the host's eth0."""
    drop = f"numgen random mod 10000 < {round(percent * 100)} drop"
    small = _no_segmentation(lab, host)
    to_host = _rule(host, "inet", "input", f"iifname eth0 {drop}")
    from_host = _rule(lab.switch, "bridge", "forward", f"iifname {lab.port(host)} {drop}")
    return Planted(small.undo, to_host.undo, from_host.undo)


def delay(lab: Lab, host: Host, one_way_ms: float = 25.0) -> Planted:
    """Every packet to and from the host takes longer."""
    port, near, far = lab.port(host), f"n{next(_numbers)}", f"f{next(_numbers)}"
    lab.switch.ip(
        f"link add {near} mtu {JUMBO} type veth peer name {far} mtu {JUMBO}",
        f"link set {port} nomaster",
        f"link set {near} up",
        f"link set {far} master br0 up",
    )
    cable = lab.switch.start((sys.executable, "-S", CABLE, port, near, str(one_way_ms)))
    cable.wait_for_output("ready")

    def undo() -> None:
        cable.kill()
        cable.wait()
        lab.switch.ip(f"link delete {near}", f"link set {port} master br0")

    return Planted(undo)


def foreign_switch(lab: Lab, host: Host, nic: str = "eth0") -> Planted:
    """Connect the cable to a switch without other hosts."""
    port, bridge, alone = lab.port(host, nic), f"br{nic.removeprefix('eth')}", f"alone{next(_numbers)}"
    lab.switch.ip(f"link add {alone} type bridge", f"link set {alone} up", f"link set {port} master {alone}")
    return Planted(lambda: lab.switch.ip(f"link set {port} master {bridge}", f"link delete {alone}"))


def rate(lab: Lab, host: Host, mbit_per_s: int = 100, nic: str = "eth0") -> Planted:
    """The host's link is as slow as this, in both directions."""
    return _shaped(mbit_per_s, (host, nic), (lab.switch, lab.port(host, nic)))


def rate_out(host: Host, mbit_per_s: int = 100, nic: str = "eth0") -> Planted:
    """Limit the rate of the host's sends; receiving is unaffected."""
    return _shaped(mbit_per_s, (host, nic))


def _shaped(mbit_per_s: int, *ends: tuple[Host, str]) -> Planted:
    shape = ("root", "tbf", "rate", f"{mbit_per_s}mbit", "burst", "64kb", "latency", "50ms")
    for place, device in ends:
        place.net("tc", "qdisc", "add", "dev", device, *shape)
    return Planted(lambda: [it.net("tc", "qdisc", "delete", "dev", device, "root") for it, device in ends])


def burst_credit(host: Host, nic: str = "eth1", kbytes: int = 6000, kbytes_per_s: int = 1000) -> Planted:
    """Limit the rate of the host's sends once its credit is used up, as on small cloud instances."""
    spent = f"oifname {nic} quota over {kbytes} kbytes limit rate over {kbytes_per_s} kbytes/second"
    return _rule(host, "inet", "output", f"{spent} burst 128 kbytes drop")


def slow_path(host: Host, peer: Host, mbit_per_s: int = 100) -> Planted:
    """Limit the rate of the host's sends to the peer; the other direction is unaffected."""
    host.net("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb")  # passes what is of no class
    host.net(
        "tc",
        "class",
        "add",
        "dev",
        "eth0",
        "parent",
        "1:",
        "classid",
        "1:2",
        "htb",
        "rate",
        f"{mbit_per_s}mbit",
        "quantum",
        "60000",
    )
    to_peer = _rule(host, "inet", "output", f"{_address(peer)('daddr')} meta priority set 1:2")
    return Planted(to_peer.undo, lambda: host.net("tc", "qdisc", "delete", "dev", "eth0", "root"))


def mtu(host: Host, size: int = JUMBO) -> Planted:
    """Let only this host send larger packets. TCP agrees on the smaller size, so this is harmless."""
    host.ip(f"link set eth0 mtu {size}")
    return Planted(lambda: host.ip(f"link set eth0 mtu {STANDARD}"))


def mtu_black_hole(lab: Lab, host: Host) -> Planted:
    """Let all hosts send 9000 bytes while the switch's port of this one accepts 1500: large packets vanish."""
    _mtu(lab, JUMBO, lambda other: STANDARD if other is host else JUMBO)
    small = [_no_segmentation(lab, other) for other in lab.hosts]
    return Planted(lambda: _mtu(lab, STANDARD, lambda _: STANDARD), *(each.undo for each in small))


def _filter(host: Host, incoming: str = "", outgoing: str = "") -> Planted:
    """A rule for what comes in from other hosts, and one for what goes out to them."""
    rules = (("input", "iifname", incoming), ("output", "oifname", outgoing))
    planted = [_rule(host, "inet", hook, f"{nic} != lo {rule}") for hook, nic, rule in rules if rule]
    return Planted(*(each.undo for each in planted))


def _rule(place: Host, family: str, hook: str, rule: str) -> Planted:
    """Add one rule of nftables in a separate table."""
    table = f"fault{next(_numbers)}"
    place.net(
        *("nft", "-f", "-"),
        text=f"table {family} {table} {{\nchain c {{\ntype filter hook {hook} priority 0\n{rule}\n}}\n}}\n",
    )
    return Planted(lambda: place.net("nft", "delete", "table", family, table))


def _address(peer: Host) -> Callable[[str], str]:
    family = "ip6" if ":" in peer.address else "ip"
    return lambda field: f"{family} {field} {peer.address}"


def _no_segmentation(lab: Lab, host: Host) -> Planted:
    """Disable segmentation offload, so that packets are as small as on a real wire.

    Otherwise up to 64 kB travel as one packet that no MTU applies to.
    """

    ends = ((host, "eth0"), (lab.switch, lab.port(host)))

    def turn(state: str) -> None:
        for place, device in ends:
            place.net("ethtool", "-K", device, "tso", state)

    turn("off")
    return Planted(lambda: turn("on"))


def _mtu(lab: Lab, of_hosts: int, of_port: Callable[[Host], int]) -> None:
    for host in lab.hosts:
        lab.switch.ip(f"link set {lab.port(host)} mtu {of_port(host)}")
        host.ip(f"link set eth0 mtu {of_hosts}")
