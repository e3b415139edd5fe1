"""DD530, DD531, DD535, DD537: nodes, paths and addresses to which no connection succeeds."""

from collections.abc import Iterable, Iterator

from ddp_doctor.checks.cluster.connectivity import wording
from ddp_doctor.checks.cluster.connectivity.matrix import PATHS_SHOWN, Matrix
from ddp_doctor.checks.cluster.connectivity.wording import MEET, way_out
from ddp_doctor.facts.cluster import ConnectivityFact, PeerConnectivity
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.interface_faults import faults
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.interfaces import backend_name
from ddp_doctor.views.network import offer_of
from ddp_doctor.views.path_blame import Path
from ddp_doctor.wording.findings import finding, proved
from ddp_doctor.wording.nodes import host, hosts, name_list, node_culprit
from ddp_doctor.wording.ranks import capital

#: The outcomes as text, after "on these paths …".
_FATE = {
    "refused": "connections are refused",
    "timed_out": "connections get no answer",
    "unreachable": "connections end in 'unreachable'",
    "denied": "the connecting host itself forbids connections",
    "mute": "connections open but are never answered, as by a proxy",
    "foreign": "another program answers",
}


@rule("DD530", "inbound-to-node-blocked", Consequence.FAILS, ConnectivityFact)
def inbound_to_node_blocked(recording: Recording) -> Iterator[Draft]:
    """A node joined the check-in, but other nodes cannot connect to it on ephemeral ports.

    Finds: Reports nodes to which all connections fail (refused, no answer, unreachable), although they can connect to
        other nodes or other nodes reach each other. If no connection between any two nodes succeeds, one finding covers
        all nodes. With two nodes, the node is reported that can connect but does not accept connections.
    Why: The rendezvous port is open, so torchrun starts everywhere. Then the workers hang without a message, and
        healthy nodes name their own ranks.
    Remedy: Open the ephemeral ports between these nodes, or set ip_local_port_range to ports that are already open.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
        https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    matrix = Matrix.of(recording)
    found = matrix.blocked  # without nodes if every path is blocked
    met = "The nodes checked in, so the network works."
    confidence = Confidence.PROVED if len(matrix.nodes) > 2 else Confidence.LIKELY
    groups: dict[str, list[int]] = {"": matrix.nodes} if found.everyone else {}
    for node in found.inbound:
        outcomes = [matrix.seen[path].outcome for path in matrix.failed if path[1] == node]
        groups.setdefault(_FATE[max(set(outcomes), key=outcomes.count)], []).append(node)
    for fate, nodes in groups.items():
        paths = list(matrix.seen) if found.everyone else [path for path in matrix.failed if path[1] in nodes]
        where, ports = "every node" if found.everyone else hosts(recording, nodes), _common_port_range(matrix, nodes)
        title = f"Inbound {wording.port_words(ports)} of {where} are blocked: {fate}"
        if found.everyone:
            title = f"{capital(wording.port_words(ports))} are blocked between all {len(nodes)} nodes"
        both = [node for node in nodes if node in found.outbound]
        more = f" {hosts(recording, both)} cannot connect to the other nodes either." if both else ""
        yield _blocked(
            recording,
            (node_culprit(recording, node) for node in nodes),
            title,
            paths,
            wording.let_in(where, ports, matrix.addresses(source for source, _ in paths)),
            wording.narrow_ports(ports),
            detail=met + more,
            confidence=confidence,
        )


@rule("DD531", "path-between-nodes-blocked", Consequence.FAILS, ConnectivityFact)
def path_between_nodes_blocked(recording: Recording) -> Iterator[Draft]:
    """Two nodes cannot connect to each other, although both reach others or are the only two.

    Finds: Reports single pairs, in one direction or both, that neither node explains, because both work with other
        nodes. If the job has only two nodes and neither can connect to the other, the pair is named, because the tests
        cannot show which node is at fault.
    Why: gloo and NCCL connect pairs of ranks. The first ring or tree that contains this pair hangs all ranks.
    Remedy: Compare the firewalls, routes and access lists of these two nodes with a working pair's.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    matrix = Matrix.of(recording)
    for fate, paths in grouped((_FATE[matrix.seen[path].outcome], path) for path in matrix.blocked.paths).items():
        ends = sorted({node for path in paths for node in path})
        ports = _common_port_range(matrix, ends)
        many = "s" if len({frozenset(path) for path in paths}) > 1 else ""
        targets = sorted({target for _, target in paths})
        yield _blocked(
            recording,
            wording.path_culprits(recording, paths),
            f"Path{many} {wording.path_words(recording, paths)} {'are' if many else 'is'}"
            f" blocked for {wording.port_words(ports)}: {fate}",
            paths,
            wording.let_in(hosts(recording, targets), ports, matrix.addresses(source for source, _ in paths)),
            wording.trace_path(recording, paths),
            wording.narrow_ports(ports),
            detail="The nodes checked in.",
        )


@rule("DD537", "outbound-from-node-blocked", Consequence.FAILS, ConnectivityFact)
def outbound_from_node_blocked(recording: Recording) -> Iterator[Draft]:
    """A node accepts connections but cannot connect to the others on ephemeral ports.

    Finds: Reports nodes from which all connections fail, while other nodes reach the same targets.
    Why: The workers of that node cannot reach MASTER_PORT on node rank 0 or the listeners of gloo and NCCL.
    Remedy: Allow outbound connections in the node's own firewall, or at the edge of its network.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    matrix = Matrix.of(recording)
    found = matrix.blocked
    nodes = [node for node in found.outbound if node not in found.inbound]
    if not nodes:
        return
    paths = [path for path in matrix.failed if path[0] in nodes]
    names = hosts(recording, nodes)
    ports = _common_port_range(matrix, [target for _, target in paths])
    fates = " or ".join(dict.fromkeys(_FATE[matrix.seen[path].outcome] for path in paths))
    yield _blocked(
        recording,
        (node_culprit(recording, node) for node in nodes),
        f"Outbound {wording.port_words(ports)} of {names} are blocked: {fates}",
        paths,
        wording.let_out(names, ports),
        wording.narrow_ports(ports),
        detail="Other nodes reach the nodes that it connects to.",
    )


def _blocked(
    recording: Recording,
    culprits: Iterable[Culprit],
    title: str,
    paths: list[Path],
    *remedies: Remedy,
    detail: str,
    confidence: Confidence = Confidence.PROVED,
) -> Draft:
    """Return a finding about these paths; a working other network is recommended before ``remedies``."""
    around = way_out(recording)
    return finding(
        culprits,
        title,
        dials_seen(recording, paths),
        *around,
        *remedies,
        confidence=confidence,
        detail=f"{detail} {wording.NEEDED_BY}.",
        reproduced_by=MEET if around else None,
    )


def _common_port_range(matrix: Matrix, nodes: Iterable[int]) -> wording.PortRange | None:
    """Return the ephemeral ports of these nodes, or None if they differ."""
    known = {row.port_range for node in nodes if (row := matrix.rows.get(node)) and row.port_range}
    return known.pop() if len(known) == 1 else None


@rule("DD535", "advertised-address-leads-elsewhere", Consequence.FAILS, ConnectivityFact)
def advertised_address_leads_elsewhere(recording: Recording) -> Iterator[Draft]:
    """The address that the backend advertises does not reach its node, although another address does.

    Finds: Reports connections that fail to the address that gloo or NCCL would advertise, but succeed, on the same
        port, to the address that the node used for the check-in. Not reported if a finding about the interfaces (DD520
        to DD526) already explains it.
    Why: The ranks of other nodes connect to that address, wait, and then name themselves as failed.
    Remedy: Set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to the interface of the working address.
    See: https://docs.pytorch.org/docs/stable/distributed.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    matrix = Matrix.of(recording)
    explained = set(faults([offer_of(node, recording.backend) for node in recording.facts(InterfacesFact)]))
    found = matrix.misled
    nodes = [node for node in found.nodes if node not in explained]
    paths = [path for path in found.paths if not explained & set(path)]
    if found.everyone and not explained:
        nodes = matrix.nodes
    if not nodes and not paths:
        return
    wrong = paths or [path for path in matrix.misled_paths if set(path) & set(nodes)]
    targets = sorted({target for _, target in wrong})
    who = nodes or targets
    given_out = []
    for node, address in sorted({(path[1], matrix.seen[path].address) for path in wrong if path[1] in who}):
        interface = wording.interface_name(recording, node, address)
        given_out.append(f"{address} ({host(recording, node)}{f', {interface}' if interface else ''})")
    met = {path[1]: matrix.seen[path].met_at for path in wrong}
    unmet = {path[1]: peer.address for path, peer in matrix.seen.items() if path[1] not in met}
    offered = way_out(recording) or (wording.use_met_interface(recording, met, unmet),)
    reached = sorted({address for node, address in met.items() if node in who and address})
    yield proved(
        tuple(node_culprit(recording, node) for node in nodes) or wording.path_culprits(recording, paths),
        f"{backend_name(recording.backend)} uses {name_list(given_out)}, which other nodes"
        f" cannot reach (reachable: {name_list(reached)})",
        dials_seen(recording, wrong),
        *offered,
        detail="The network works, but the backend chose the wrong address.",
        reproduced_by=MEET if offered[0].settings else None,
    )


def dials_seen(recording: Recording, paths: list[Path]) -> tuple[Evidence, ...]:
    """Return some of the failed attempts, their number, and one attempt that shows what works."""
    matrix = Matrix.of(recording)
    evidence = [Evidence(text=_dial(recording, path, matrix.seen[path])) for path in paths[:PATHS_SHOWN]]
    works = [path for path, peer in matrix.seen.items() if peer.connect_s is not None]
    shown = [path for path in works if path[::-1] in paths] or works
    evidence += [Evidence(text=_dial(recording, path, matrix.seen[path])) for path in shown[:1]]
    if len(paths) > PATHS_SHOWN:
        text = "paths without a connection"
        evidence.append(Evidence(text=text, value=len(paths), expected=0))
    return tuple(evidence)


def _dial(recording: Recording, path: Path, peer: PeerConnectivity) -> str:
    address = f"[{peer.address}]" if ":" in peer.address else peer.address
    result = wording.system_words(peer.error)
    if peer.connect_s is not None:
        result = f"connected after {peer.connect_s * 1e3:.1f} ms"
    also = f"; {peer.met_at} answers" if peer.met_at_outcome == "ok" else ""
    source, target = (host(recording, node) for node in path)
    return f"{source} to {target} at {address}:{peer.port}: {result}{also}"
