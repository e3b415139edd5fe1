"""DD530, DD531, DD537: paths on which no connection comes about."""

from collections.abc import Iterable, Iterator

from ddp_doctor.checks.cluster.connectivity import wording as words
from ddp_doctor.checks.cluster.connectivity.blame import Path
from ddp_doctor.checks.cluster.connectivity.dials import dials_seen
from ddp_doctor.checks.cluster.connectivity.matrix import Matrix
from ddp_doctor.checks.cluster.connectivity.ways import MEET, way_out
from ddp_doctor.facts.cluster.connectivity import ConnectivityFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import finding, proved
from ddp_doctor.wording.nodes import node_culprit
from ddp_doctor.wording.ranks import capital

#: What became of the request, for "on these paths …".
_FATE = {
    "refused": "connections are refused",
    "timed_out": "connections get no answer",
    "unreachable": "connections end in 'unreachable'",
    "denied": "connections are forbidden by the dialling host itself",
    "mute": "connections are made and never answered, as by a proxy",
    "foreign": "another program answers",
}


@rule("DD530", "inbound-to-node-blocked", Severity.ERROR, ConnectivityFact)
def inbound_blocked(recording: Recording) -> Iterator[Draft]:
    """A node that meets the others at the roll call, and that nobody can dial on ephemeral ports.

    What it finds
        Nodes to which all dials fail (refused, no answer, unreachable) although they dial out themselves, or
        others reach each other. One finding for all nodes where no dial between any two succeeds. With two
        nodes: the one that can dial and cannot be dialled.

    Why it matters
        The port of the rendezvous is open, so torchrun starts everywhere; then the workers hang in silence,
        and healthy nodes name their own ranks.

    Remedy
        A firewall rule for the ephemeral ports between these nodes, or an ip_local_port_range within what is
        open.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
        https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    matrix = Matrix.of(recording)
    found = matrix.blocked
    if found.everyone:
        nodes = matrix.nodes
        ports = _ports(matrix, nodes)
        title = f"{capital(words.port_words(ports))} are blocked between all {len(nodes)} nodes"
        yield _blocked(recording, matrix, list(matrix.seen), title, nodes, "every node")
        return
    for fate, nodes in _by_fate(matrix, found.inbound).items():
        paths = [path for path in matrix.failed if path[1] in nodes]
        names = words.hosts(recording, nodes)
        title = f"Inbound to {names} is blocked for {words.port_words(_ports(matrix, nodes))}: {fate}"
        both = [node for node in nodes if node in found.outbound]
        more = f" {words.hosts(recording, both)} cannot dial the others either." if both else ""
        yield _blocked(recording, matrix, paths, title, nodes, names, more)


@rule("DD531", "path-between-nodes-blocked", Severity.ERROR, ConnectivityFact)
def path_blocked(recording: Recording) -> Iterator[Draft]:
    """Two nodes between which no connection comes about, while both reach others, or are the only two.

    What it finds
        Single pairs, in one direction or both, that no node explains: both ends work otherwise. With two
        nodes that cannot dial each other nobody can tell whose fault it is, so the pair is named.

    Why it matters
        gloo and NCCL connect pairs of ranks. The first ring or tree that holds this pair hangs all.

    Remedy
        Compare the firewalls, routes and access lists of these two with those of the pairs that work.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    matrix, around = Matrix.of(recording), way_out(recording)
    for fate, paths in _paths_by_fate(matrix, matrix.blocked.paths).items():
        ends = sorted({node for path in paths for node in path})
        ports = _ports(matrix, ends)
        many = "s" if len({frozenset(path) for path in paths}) > 1 else ""
        title = (
            f"The path{many} {words.path_words(recording, paths)} {'are' if many else 'is'} blocked for"
            f" {words.port_words(ports)}: {fate}"
        )
        targets = sorted({target for _, target in paths})
        yield proved(
            words.path_culprits(recording, paths),
            title,
            dials_seen(recording, matrix, paths),
            *around,
            words.let_in(
                words.hosts(recording, targets), ports, matrix.addresses(source for source, _ in paths)
            ),
            words.trace_path(recording, paths, matrix.address_of),
            words.narrow_ports(ports),
            detail=f"The nodes met at the roll call. {words.NEEDED_BY}.",
            reproduced_by=MEET if around else None,
        )


@rule("DD537", "outbound-from-node-blocked", Severity.ERROR, ConnectivityFact)
def outbound_blocked(recording: Recording) -> Iterator[Draft]:
    """A node that can be dialled and cannot dial the others on ephemeral ports.

    What it finds
        Nodes from which all dials fail while the nodes that they dial are reached by others.

    Why it matters
        The workers of that node cannot reach MASTER_PORT on node rank 0, nor the listeners of gloo and NCCL.

    Remedy
        Open the way out in the node's own firewall, or at the edge of its network.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    matrix = Matrix.of(recording)
    found = matrix.blocked
    nodes = [node for node in found.outbound if node not in found.inbound]
    if not nodes:
        return
    paths = [path for path in matrix.failed if path[0] in nodes]
    names = words.hosts(recording, nodes)
    ports, around = _ports(matrix, [target for _, target in paths]), way_out(recording)
    fates = " or ".join(dict.fromkeys(_FATE[matrix.seen[path].outcome] for path in paths))
    yield proved(
        (node_culprit(recording, node) for node in nodes),
        f"Outbound from {names} is blocked for {words.port_words(ports)}: {fates}",
        dials_seen(recording, matrix, paths),
        *around,
        words.let_out(names, ports),
        words.narrow_ports(ports),
        detail=f"The nodes that it dials are reached by others. {words.NEEDED_BY}.",
        reproduced_by=MEET if around else None,
    )


def _blocked(
    recording: Recording,
    matrix: Matrix,
    paths: list[Path],
    title: str,
    nodes: Iterable[int],
    where: str,
    more: str = "",
) -> Draft:
    ports, around = _ports(matrix, nodes), way_out(recording)
    return finding(
        (node_culprit(recording, node) for node in nodes),
        title,
        dials_seen(recording, matrix, paths),
        *around,
        words.let_in(where, ports, matrix.addresses(source for source, _ in paths)),
        words.narrow_ports(ports),
        confidence=Confidence.PROVED if len(matrix.nodes) > 2 else Confidence.LIKELY,
        detail=f"The nodes met at the roll call, so the network is there.{more} {words.NEEDED_BY}.",
        reproduced_by=MEET if around else None,
    )


def _by_fate(matrix: Matrix, nodes: Iterable[int]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for node in nodes:
        outcomes = [matrix.seen[path].outcome for path in matrix.failed if path[1] == node]
        groups.setdefault(_FATE[max(set(outcomes), key=outcomes.count)], []).append(node)
    return groups


def _paths_by_fate(matrix: Matrix, paths: Iterable[Path]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(_FATE[matrix.seen[path].outcome], []).append(path)
    return groups


def _ports(matrix: Matrix, nodes: Iterable[int]) -> words.PortRange | None:
    """The ephemeral ports of these nodes, where they are the same."""
    known = {row.port_range for node in nodes if (row := matrix.rows.get(node)) and row.port_range}
    return known.pop() if len(known) == 1 else None
