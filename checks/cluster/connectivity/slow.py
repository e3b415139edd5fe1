"""DD533, DD538: a node, or a network in use, that is slower than others."""

from collections.abc import Iterator
from statistics import median, median_high

from ddp_doctor.checks.cluster.connectivity import wording
from ddp_doctor.checks.cluster.connectivity.matrix import PATHS_SHOWN, Matrix
from ddp_doctor.checks.cluster.connectivity.packets import measured, on_paths, unless_over_rdma
from ddp_doctor.checks.cluster.connectivity.wording import MOVE, Way, detour, take, ways
from ddp_doctor.facts.cluster import ConnectivityFact
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.knowledge.severity import of_slowdown
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.interfaces import backend_name
from ddp_doctor.settings.trials import GAIN
from ddp_doctor.views.network import chosen
from ddp_doctor.views.path_blame import Blame, Path, both_ways
from ddp_doctor.wording.findings import finding, likely
from ddp_doctor.wording.nodes import host, hosts, name_list, node_culprit, node_pair


@rule("DD533", "node-is-slow-to-its-peers", Consequence.SLOWER, ConnectivityFact, ranks="slow")
def node_is_slow_to_its_peers(recording: Recording) -> Iterator[Draft]:
    """Throughput to or from a node is much lower than between the others.

    Finds: Reports nodes whose best throughput to or from (nearly) all peers is less than a third of the throughput that
        the fastest quarter of the paths reaches in its worst samples. A single slow path, at a quarter or less, is a
        warning that names the pair, and an error at a tenth or less. Many slow paths without a common node are info,
        and a warning at a tenth or less. With two nodes, the slower direction is info, and an error at a tenth or less.
        Paths that lose or delay packets have separate findings. Severity is also info if the data goes over RDMA.
    Why: A ring is as fast as its slowest member: one node at 100 Mbit/s made every step 14 times slower.
    Remedy: Check the negotiated speed, error counters and traffic shaping of its interface, then cable, port and
        switch.
    See: docs/explanation/connectivity.md
    """
    matrix = Matrix.of(recording)
    found, lossy, late = matrix.slow, matrix.lossy, matrix.slow_to_answer
    # Paths that lose or delay packets are slow for that reason.
    explained = {*lossy.nodes, *late.nodes, *(matrix.nodes if lossy.everyone else ())}
    explained_paths = both_ways((*lossy.paths, *late.paths))
    nodes = [node for node in found.nodes if node not in explained]
    if nodes:
        yield _slow_nodes(recording, matrix, nodes, found)
    paths = [path for path in found.paths if matrix.is_slow(path, path_quality.SLOW_PATH_RATIO)]
    paths = [path for path in paths if path not in explained_paths and not explained & set(path)]
    if paths and not (len(matrix.nodes) == 2 and faster_way(recording)):  # DD538 compares two nodes with other networks
        yield _slow_paths(recording, matrix, paths)


def _slow_nodes(recording: Recording, matrix: Matrix, nodes: list[int], found: Blame) -> Draft:
    rates, usual = matrix.best_rates, matrix.usual_rate
    sides = {
        node: [
            path
            for path in rates
            if (path[0] == node and node in found.outbound) or (path[1] == node and node in found.inbound)
        ]
        for node in nodes
    }
    mine = {node: median(rates[path] for path in side) for node, side in sides.items()}
    around = detour(
        recording, lambda way: all(_is_much_faster_there(way, side, mine[node]) for node, side in sides.items())
    )
    rate, names = median(mine.values()), hosts(recording, nodes)
    ratio, its = usual / rate, "its" if len(nodes) == 1 else "their"
    of_three = len(matrix.nodes) == 3 and ratio < path_quality.VERY_SLOW_RATIO
    part = Blame(
        inbound=tuple(node for node in found.inbound if node in nodes),
        outbound=tuple(node for node in found.outbound if node in nodes),
    )
    return likely(
        (node_culprit(recording, node) for node in nodes),
        f"Network of {names} is {ratio:.0f} times slower than on {its} peers:"
        f" {wording.rate(rate)} instead of {wording.rate(usual)}",
        (
            measured(
                f"throughput of {host(recording, node)}, the median of the best of each slow path",
                rate_of_node,
                "B/s",
                usual,
            )
            for node, rate_of_node in list(mine.items())[:PATHS_SHOWN]
        ),
        *around,
        wording.look_at_link(recording, nodes),
        detail=f"Throughput is low {on_paths(recording, part)}, but high between other nodes:"
        " a slow or faulty link, traffic shaping, or a host without a free CPU."
        f" Collectives with {names} run at that speed.",
        severity=unless_over_rdma(recording, Severity.WARNING if of_three else Severity.ERROR),
        reproduced_by=MOVE if around else None,
    )


def _slow_paths(recording: Recording, matrix: Matrix, paths: list[Path]) -> Draft:
    rates, usual = matrix.best_rates, matrix.usual_rate
    rate = median(rates[path] for path in paths)
    few = len(paths) <= max(2, len(rates) * path_quality.FEW_PATHS_SHARE)
    are_two = len(matrix.nodes) == 2
    much = any(matrix.is_slow(path, path_quality.VERY_SLOW_RATIO) for path in paths)
    known = few and (much or not are_two)
    may_help = known and not _is_refuted(recording)
    around = detour(recording, lambda way: may_help and _is_much_faster_there(way, paths, rate))
    grave = (Severity.ERROR if much else Severity.WARNING) if known else Severity.WARNING if much else Severity.INFO
    return finding(
        wording.path_culprits(recording, paths),
        f"Throughput {wording.path_words(recording, paths)} is {usual / rate:.0f} times lower"
        f" than on the fastest paths: {wording.rate(rate)} instead of {wording.rate(usual)}",
        (
            measured(f"throughput {wording.path_words(recording, [path])}", rates[path], "B/s", usual)
            for path in paths[:PATHS_SHOWN]
        ),
        *around,
        wording.trace_path(recording, paths),
        confidence=Confidence.LIKELY if known else Confidence.POSSIBLE,
        detail="The other paths of these nodes are faster." if known else "The network may be designed that way.",
        severity=unless_over_rdma(recording, grave),
        reproduced_by=MOVE if around else None,
    )


def _is_much_faster_there(way: Way, paths: list[Path], rate: float) -> bool:
    return way.rate(paths) >= path_quality.FASTER_ELSEWHERE_RATIO * rate


# The ranks run anyway and are tested on the network that the job would use.
@rule("DD538", "slower-of-two-networks-is-used", Consequence.SLOWER, ConnectivityFact, ranks="run")
def slower_of_two_networks_is_used(recording: Recording) -> Iterator[Draft]:
    """A backend uses one network, although the nodes reach each other much faster in another one.

    Finds: Reported if all nodes have addresses in a second network, all tested paths in it work, and the median of its
        single throughput samples is at least twice the median of the best samples in the network that gloo or NCCL
        uses. With two nodes, the slower direction counts. Severity is error from three times, with at most 5 Gbit/s
        counted for the second network, and info if the data goes over RDMA. Not reported if a trial in the other
        network was not faster, because a short sample misleads on a busy host and if only a burst is fast. Also not
        reported if single nodes, losses or late answers explain it: their findings have the same fix.
    Why: gloo uses the interface of the host's own name, NCCL the first that it finds, and neither checks the speed. A
        job on the management network is many times slower than it could be, without a message.
    Remedy: Set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to each node's interface in the faster network.
    See: https://docs.pytorch.org/docs/stable/distributed.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        docs/explanation/connectivity.md
    """
    matrix = Matrix.of(recording)
    way = faster_way(recording)
    if way is None or _is_for_other_rules(matrix):
        return
    rate, other_rate = used_rate(matrix), _rate_of(way, matrix)
    backend = backend_name(recording.backend)
    taken = {path[1]: peer.address for path, peer in matrix.seen.items()}
    names = (wording.interface_name(recording, node, address) or address for node, address in taken.items())
    mine, theirs = (name_list(sorted(set(interfaces))) for interfaces in (names, way.interfaces.values()))
    ratio = min(other_rate, path_quality.JUDGED_BYTES_PER_S) / rate
    yield likely(
        tuple(_culprits(recording, matrix, mine)),
        f"{backend} uses the slower network: {wording.rate(rate)} over {mine}, but"
        f" {wording.rate(other_rate)} over {theirs}",
        Evidence(
            text=f"throughput over {mine}, {'the slower direction' if _are_two(matrix) else 'the median'}"
            " of the best samples",
            value=round(rate),
            unit="B/s",
            expected=round(other_rate),
            expected_from=f"{theirs} of the same nodes, one sample per path",
        ),
        take(recording, way),
        detail=f"All nodes reach each other over {theirs} in {way.network},"
        f" {other_rate / rate:.0f} times faster. No backend checks which interface is"
        " fast.",
        severity=unless_over_rdma(recording, of_slowdown(ratio)),
        reproduced_by=MOVE,
    )


def faster_way(recording: Recording) -> Way | None:
    """Return the fastest other network if it is much faster than the network in use and no trial refuted that."""
    matrix = Matrix.of(recording)
    found = next(iter(ways(recording)), None)
    if found is None or _is_refuted(recording) or not matrix.best_rates:
        return None
    if any(peer.outcome != "ok" for peer in matrix.seen.values()):
        return None
    expected = min(_rate_of(found, matrix), path_quality.JUDGED_BYTES_PER_S)
    return found if expected >= path_quality.FASTER_ELSEWHERE_RATIO * used_rate(matrix) else None


def used_rate(matrix: Matrix) -> float:
    """Return the throughput of the network in use, in bytes per second, at its best samples."""
    rates = list(matrix.best_rates.values())
    return min(rates) if _are_two(matrix) else median_high(rates)


def _rate_of(way: Way, matrix: Matrix) -> float:
    return min(peer.rate for peer in way.seen.values()) if _are_two(matrix) else way.rate()


def _are_two(matrix: Matrix) -> bool:
    return len(matrix.nodes) == 2


def _is_for_other_rules(matrix: Matrix) -> bool:
    """Return True if there are losses, late answers or slow nodes: their rules recommend the other network."""
    if matrix.lossy != Blame() or max(matrix.answers.values(), default=0.0) >= path_quality.SLOW_ANSWER_S:
        return True
    return not _are_two(matrix) and matrix.slow != Blame()


def _is_refuted(recording: Recording) -> bool:
    """Return True if a trial in the other network was not faster, or did not end."""
    tried = [experiment for experiment in recording.experiments if experiment.code == "DD538"]
    attempts = [attempt for experiment in tried for attempt in experiment.attempts]
    there = [attempt for attempt in attempts if attempt.arm == "treatment"]
    here = [attempt.bytes_per_s for attempt in attempts if attempt.arm == "control" and attempt.bytes_per_s is not None]
    if not there or any(attempt.outcome != "passed" for attempt in there):
        return bool(there)
    rates = [attempt.bytes_per_s for attempt in there if attempt.bytes_per_s is not None]
    return bool(rates and here) and median(rates) < GAIN * median(here)


def _culprits(recording: Recording, matrix: Matrix, name: str) -> Iterator[Culprit]:
    """Yield the decisive setting, or the interface of each node; with two nodes the faulty interface is unknown."""
    settings = {node.node: chosen(node.fact, recording.backend).setting for node in recording.facts(InterfacesFact)}
    if _are_two(matrix) and not any(settings.values()):
        yield node_pair(recording, *matrix.nodes).model_copy(update={"name": name})
        return
    taken = {path[1]: peer.address for path, peer in matrix.seen.items()}
    for node in matrix.nodes:
        setting = settings.get(node)
        known = setting or wording.interface_name(recording, node, taken.get(node, ""))
        yield node_culprit(recording, node, kind="setting" if setting else "nic", name=known)
