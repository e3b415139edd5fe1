"""Texts of findings about paths between nodes, and their fixes with real ports, addresses and other networks.

Sources: PyTorch documentation of torchrun (rendezvous, MASTER_PORT) and of the gloo interface variable; NCCL user
guide, "Troubleshooting", firewall ("IP ports"); nft(8), iptables-extensions(8); kernel documentation,
networking/ip-sysctl (ip_local_port_range, tcp_mtu_probing); RFC 2923 (black holes), RFC 4821 (probing).
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low

from ddp_doctor.checks.cluster.connectivity.matrix import Matrix
from ddp_doctor.facts.cluster import OtherConnectivity
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.addresses import address_of, is_ipv6
from ddp_doctor.model.context import Interface
from ddp_doctor.model.finding import Culprit, Remedy, Reproducer
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.remedies.interfaces import name_interfaces, variable, with_rendezvous
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.views.path_blame import Path
from ddp_doctor.wording.nodes import host, name_list, node_pair

PortRange = tuple[int, int]

#: Diagnosis steps for network administrators.
diagnosis = partial(by_administrator)

#: The use of these ports by a job.
NEEDED_BY = (
    "torchrun's c10d rendezvous picks a MASTER_PORT in this range on node rank 0, and gloo"
    " and NCCL listen in it on every node, so the job waits until its timeouts"
)
#: Python's prefix of an error message from the system.
_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
#: Maximum number of addresses on a command line.
_ADDRESSES = 16
#: The headers of a segment: IPv4 or IPv6, TCP, and its time stamps.
_HEADERS_V4, _HEADERS_V6 = 52, 72
#: A ping of the same size carries this much more data, because its header is shorter than a TCP header.
_PING = 24


def port_words(ports: PortRange | None) -> str:
    """Return "ephemeral ports (TCP 32768-60999)", or without numbers if unknown."""
    return f"ephemeral ports (TCP {ports[0]}-{ports[1]})" if ports else "ephemeral ports"


def system_words(error: str | None) -> str:
    """Return ``[Errno 110] Connection timed out`` without the number."""
    return _NUMBER.sub("", error or "reason unknown")


def rate(bytes_per_s: float) -> str:
    """Return a throughput for a sentence."""
    return f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 10e6 else f"{bytes_per_s / 1e6:.2f} MB/s"


def path_words(recording: Recording, paths: Iterable[Path]) -> str:
    """Return "from node1 to node3", or "between node1 and node3" for both directions."""
    known, words = set(paths), []
    for source, target in sorted(known):
        names = host(recording, source), host(recording, target)
        if (target, source) not in known:
            words.append("from {} to {}".format(*names))
        elif source < target:
            words.append("between {} and {}".format(*names))
    return name_list(words)


def path_culprits(recording: Recording, paths: Iterable[Path]) -> tuple[Culprit, ...]:
    """Return one culprit for each pair of nodes, whatever the direction."""
    pairs = dict.fromkeys((min(path), max(path)) for path in sorted(paths))
    return tuple(node_pair(recording, *pair) for pair in pairs)


def interface_with(recording: Recording, node: int, address: str) -> Interface | None:
    """Return the node's interface that has the address, or None if its interfaces were not recorded."""
    for reading in recording.facts(InterfacesFact):
        for interface in reading.fact.interfaces if reading.node == node else ():
            if address in {address_of(held) for held in interface.addresses}:
                return interface
    return None


def interface_name(recording: Recording, node: int, address: str) -> str | None:
    """Return the name of that interface, from the world if the interfaces were not recorded."""
    known = interface_with(recording, node, address)
    if known is not None or recording.world is None:
        return known.name if known else None
    held = (place.addresses for place in recording.world.nodes if place.node_rank == node)
    return next((name for addresses in held for name, those in addresses.items() if address in those), None)


def let_in(where: str, ports: PortRange | None, sources: Sequence[str]) -> Remedy:
    """Return the fix that opens these nodes' firewall for the others. ``where`` names the nodes, or all."""
    first, last = map(str, ports) if ports else ("FIRST", "LAST")
    commands = ["sudo nft list ruleset   # which table and chain filters the input"]
    for ipv6, saddr, iptables in ((False, "ip saddr", "iptables"), (True, "ip6 saddr", "ip6tables")):
        family = [source.partition("%")[0] for source in sources if is_ipv6(source) == ipv6]
        is_network = len(family) > _ADDRESSES
        listed = "NETWORK/PREFIX" if is_network else ", ".join(family)
        braces = listed if is_network else f"{{ {listed} }}"
        if family:
            nft = f"sudo nft insert rule inet filter input {saddr} {braces} tcp dport {first}-{last} accept"
            legacy = f"sudo {iptables} -I INPUT -p tcp -s {listed.replace(' ', '')} --dport {first}:{last} -j ACCEPT"
            commands += [f"{nft}   # on {where}", f"{legacy}   # or so"]
    return by_administrator(
        f"Allow {port_words(ports)} from the job's nodes in the firewall of {where}, or in the cloud security group",
        *commands,
        cost="administrator access; opens these ports to the named nodes only",
        undo="delete the rule",
        references=("nft(8)", "iptables-extensions(8)"),
    )


def let_out(where: str, ports: PortRange | None) -> Remedy:
    """Return the fix that allows outgoing connections of these nodes."""
    return by_administrator(
        f"Allow {port_words(ports)} from {where} to the other nodes in its own firewall, or at the edge of its network",
        "sudo nft list ruleset   # which chain filters the output",
        cost="administrator access",
        undo="delete the rule",
        references=("nft(8)",),
    )


def narrow_ports(ports: PortRange | None) -> Remedy:
    """Return the fix that moves the ephemeral ports to ports that the firewall allows."""
    return by_administrator(
        "Set ip_local_port_range on all nodes to ports that are already open",
        'sudo sysctl -w net.ipv4.ip_local_port_range="FIRST LAST"   # on every node',
        scope="cluster",
        cost="a smaller port range for all programs of these hosts; each rank needs several ports per peer",
        undo=f'sudo sysctl -w net.ipv4.ip_local_port_range="{ports[0]} {ports[1]}"' if ports else "",
        references=("https://docs.kernel.org/networking/ip-sysctl.html",),
    )


def trace_path(recording: Recording, paths: Iterable[Path]) -> Remedy:
    """Return the next step to find the devices between two nodes."""
    addresses = Matrix.of(recording).address_of
    known = [(source, addresses[target]) for source, target in sorted(paths) if target in addresses]
    return diagnosis(
        "Compare firewalls, security groups and access lists at both ends and between them",
        *(f"tracepath -n {address}   # on {host(recording, source)}" for source, address in known[:2]),
        scope="cluster",
    )


def one_mtu(recording: Recording, node: int, address: str, passed_bytes: int, mss_bytes: int | None) -> Remedy:
    """Return the fix that gives the path one MTU; ``address`` is a peer at the other end."""
    headers = _HEADERS_V6 if is_ipv6(address) else _HEADERS_V4
    ping = (mss_bytes or 8948) + _PING
    return by_administrator(
        "Set one MTU on all interfaces and switch ports of the path, and allow ICMP"
        f" 'fragmentation needed'; packets of {passed_bytes + headers} bytes ({passed_bytes}"
        f" of data, {headers} of headers) arrive",
        f"ping -c 3 -M do -s {ping} {address}   # on {host(recording, node)}",
        f"tracepath -n {address}   # where the size drops",
        "ip link show   # the MTU of each interface",
        scope="cluster",
        cost="administrator access to hosts or switches",
        references=("RFC 2923",),
    )


def smaller_mtu(places: Sequence[tuple[str, Interface]], passed_bytes: int, *, ipv6: bool) -> Remedy:
    """Return the workaround that sends only packets known to arrive. ``places``: host names and their interfaces."""
    size = passed_bytes + (_HEADERS_V6 if ipv6 else _HEADERS_V4)
    former = dict.fromkeys(f"sudo ip link set dev {interface.name} mtu {interface.mtu}" for _, interface in places)
    return by_administrator(
        "Set a smaller MTU, or let TCP find the size automatically (workaround)",
        *(f"sudo ip link set dev {interface.name} mtu {size}   # on {name}" for name, interface in places),
        "sudo sysctl -w net.ipv4.tcp_mtu_probing=1   # on every node, instead",
        cost="more packets and CPU time; probing stalls each new connection for seconds",
        undo="; ".join([*former, "sudo sysctl -w net.ipv4.tcp_mtu_probing=0"]),
        references=("RFC 4821", "https://docs.kernel.org/networking/ip-sysctl.html"),
    )


def look_at_link(recording: Recording, nodes: Iterable[int]) -> Remedy:
    """Return the next step to check the interface of each node, its cables and queues."""
    addresses = Matrix.of(recording).address_of
    named = {node: interface_name(recording, node, addresses.get(node, "")) or "INTERFACE" for node in nodes}
    return diagnosis(
        "Check speed, errors and traffic shaping of the interface, then cable, port and switch",
        *(
            command
            for node, interface in list(named.items())[:2]
            for command in (
                f"ethtool {interface} | grep -E 'Speed|Duplex'   # on {host(recording, node)}",
                f"ethtool -S {interface} | grep -iE 'err|drop|disc|crc' | grep -v ': 0'",
                f"ip -s link show {interface}; tc qdisc show dev {interface}",
            )
        ),
    )


def use_interfaces(
    recording: Recording, interfaces: Mapping[int, str], why: str, *, rendezvous: bool = False
) -> Remedy:
    """Return the fix that makes the run's backend use these interfaces, whatever its previous settings were.

    With ``rendezvous``, torchrun also uses them if host names resolve to other interfaces, which do not work.
    """
    backend = recording.backend
    facts = {node.node: node.fact for node in recording.facts(InterfacesFact)}
    held = {node.node_rank: set(node.addresses) for node in recording.world.nodes} if recording.world else {}
    known = {node: {interface.name for interface in fact.interfaces} for node, fact in facts.items()}
    settings = (fact.settings.get(variable(backend)) for fact in facts.values())
    old = [setting for setting in settings if setting]
    remedy = name_interfaces(recording, backend, {**held, **known}, interfaces, why, old)
    hosts = {node: (fact.interfaces, fact.hostname_addresses) for node, fact in facts.items()}
    return with_rendezvous(recording, remedy, hosts, interfaces) if rendezvous else remedy


def use_met_interface(recording: Recording, met: Mapping[int, str], others: Mapping[int, str]) -> Remedy:
    """Return the fix to advertise working addresses: ``met`` are addresses from the check-in, ``others`` the rest."""
    addresses = {**others, **met}
    found = {node: interface_name(recording, node, address) for node, address in sorted(addresses.items())}
    names = {node: interface for node, interface in found.items() if interface is not None}
    if len(set(names.values())) > 1:
        names = {node: interface for node, interface in names.items() if node in met}
    return use_interfaces(recording, names, "it has the address that the nodes connected with")


#: For ranks that do not connect at all.
MEET = Reproducer(kind="meet")
#: A tenth of a second at 100 Mbit/s, and more than any black hole lets through.
MOVE = Reproducer(kind="all_reduce", size_bytes=1024 * 1024)
#: Enough packets that losses show in every trial, not only in half of them. On a busy machine, 1 MiB with 10% lost in
#: each direction ran at up to 125 MB/s, over the other network at 216 or more; 4 MiB with 5% at up to 126 against 467.
MOVE_MUCH = Reproducer(kind="all_reduce", size_bytes=4 * 1024 * 1024)
#: Small enough that round trips dominate.
ANSWER = Reproducer(kind="all_reduce", size_bytes=64 * 1024)


@dataclass
class Way:
    """A network with measurements; ``seen`` by path."""

    network: str
    interfaces: dict[int, str] = field(default_factory=dict)  # each node's own
    seen: dict[Path, OtherConnectivity] = field(default_factory=dict)

    def rate(self, paths: Collection[Path] = ()) -> float:
        """Return the median throughput over these paths, or all, in bytes per second."""
        return median_low([self.seen[path].rate for path in paths or self.seen])

    def answer_s(self, paths: Collection[Path] = ()) -> float:
        """Return the median of the shortest round trips over these paths, or all."""
        return median_low([self.seen[path].round_trip_min_s or 0.0 for path in paths or self.seen])


@once_a_recording
def ways(recording: Recording) -> list[Way]:
    """Return the other networks on which all tested paths work, the fastest first."""
    matrix, found = Matrix.of(recording), dict[str, Way]()
    for path, peer in matrix.seen.items():
        for other_network in peer.others:
            way = found.setdefault(other_network.network, Way(other_network.network))
            way.interfaces |= {path[0]: other_network.interface, path[1]: other_network.peer_interface}
            way.seen[path] = other_network
    whole = [
        way
        for way in found.values()
        if way.seen.keys() == matrix.seen.keys() and all(peer.outcome == "ok" for peer in way.seen.values())
    ]
    return sorted(whole, key=lambda way: -way.rate())


def detour(recording: Recording, fits: Callable[[Way], bool]) -> tuple[Remedy, ...]:
    """Return the fix that uses the fastest other network that fits; empty if none does."""
    found = next(filter(fits, ways(recording)), None)
    return () if found is None else (take(recording, found),)


def way_out(recording: Recording) -> tuple[Remedy, ...]:
    """Return the fix that uses the fastest other network, including for the rendezvous: the current one is blocked."""
    return tuple(take(recording, way, rendezvous=True) for way in ways(recording)[:1])


def take(recording: Recording, way: Way, *, rendezvous: bool = False) -> Remedy:
    """Return the fix that makes the backend use this network on all nodes."""
    why = f"all nodes reach each other there, in {way.network}"
    return use_interfaces(recording, dict(sorted(way.interfaces.items())), why, rendezvous=rendezvous)
