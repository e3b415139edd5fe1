"""DD533: a node or path that gets much less through than the others."""

from collections.abc import Iterator
from statistics import median

from ddp_doctor.checks.cluster.connectivity import wording as words
from ddp_doctor.checks.cluster.connectivity.blame import Blame, Path
from ddp_doctor.checks.cluster.connectivity.impaired import look, measured, on_paths, unless_over_rdma
from ddp_doctor.checks.cluster.connectivity.matrix import PATHS_SHOWN, Matrix
from ddp_doctor.checks.cluster.connectivity.outrun import faster_way
from ddp_doctor.checks.cluster.connectivity.ways import MOVE, Way, detour
from ddp_doctor.facts.cluster.connectivity import ConnectivityFact
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import finding, likely
from ddp_doctor.wording.nodes import host, node_culprit


@rule("DD533", "node-is-slow-to-its-peers", Severity.ERROR, ConnectivityFact, ranks="slow")
def slow_node(recording: Recording) -> Iterator[Draft]:
    """A node to or from which much less gets through than between the others.

    What it finds
        Nodes whose best throughput to or from (nearly) all peers is less than a third of what the fastest
        quarter of the paths reaches in its worst samples. A single slow path, at a quarter or less, is a warning
        with the pair; many slow paths without a common node, and all of two nodes, are information. What loses or
        delays packets is another finding. Information, too, where the data goes over RDMA.

    Why it matters
        A ring is as fast as its slowest member: one node at 100 Mbit/s made every step 14 times slower.

    Remedy
        Negotiated speed, error counters and traffic shaping of its interface, then cable, port and switch.

    References
        docs/explanation/reach.md
    """
    matrix = Matrix.of(recording)
    found, explained = matrix.slow, _explained(matrix)
    nodes = [] if explained.everyone else [node for node in found.nodes if node not in explained.nodes]
    if nodes:
        yield _slow_nodes(recording, matrix, nodes, found)
    paths = [path for path in found.paths if matrix.is_slow(path, path_quality.SLOW_PATH_RATIO)]
    paths = [path for path in paths if not _is_told(path, explained)]
    if paths and not (len(matrix.nodes) == 2 and faster_way(recording)):  # DD538 has somebody to compare with
        yield _slow_paths(recording, matrix, paths)


def _slow_nodes(recording: Recording, matrix: Matrix, nodes: list[int], found: Blame) -> Draft:
    rates, usual = matrix.best_rates, matrix.usual_rate
    sides = {node: _slow_side(found, node, rates) for node in nodes}
    mine = {node: median(rates[path] for path in side) for node, side in sides.items()}
    around = detour(
        recording, lambda way: all(_is_faster(way, side, mine[node]) for node, side in sides.items())
    )
    rate, names = median(mine.values()), words.hosts(recording, nodes)
    ratio, verb, its = usual / rate, *(("is", "its") if len(nodes) == 1 else ("are", "their"))
    of_three = len(matrix.nodes) == 3 and ratio < path_quality.SLOW_OF_THREE_RATIO
    part = Blame(
        inbound=tuple(node for node in found.inbound if node in nodes),
        outbound=tuple(node for node in found.outbound if node in nodes),
    )
    return likely(
        (node_culprit(recording, node) for node in nodes),
        f"{names} {verb} {ratio:.0f} times slower than {its} peers: {words.rate(rate)} against"
        f" {words.rate(usual)}",
        (
            measured(
                f"throughput of {host(recording, node)}, the median of the best of each slow path",
                one,
                "B/s",
                usual,
            )
            for node, one in list(mine.items())[:PATHS_SHOWN]
        ),
        *around,
        look(recording, matrix, nodes),
        detail=f"{on_paths(recording, part)} little gets through, between the others much more: a thin or"
        f" faulty link, traffic shaping, or a host without a free CPU. Collectives with {names} run at that speed.",
        severity=unless_over_rdma(recording, Severity.WARNING if of_three else Severity.ERROR),
        reproduced_by=MOVE if around else None,
    )


def _slow_paths(recording: Recording, matrix: Matrix, paths: list[Path]) -> Draft:
    rates, usual = matrix.best_rates, matrix.usual_rate
    rate = median(rates[path] for path in paths)
    few = len(paths) <= max(2, len(rates) * path_quality.FEW_PATHS_SHARE)
    known = few and len(matrix.nodes) > 2
    around = detour(recording, lambda way: known and _is_faster(way, paths, rate))
    detail = "The other paths of these nodes are faster." if known else "Perhaps the network is built so."
    return finding(
        words.path_culprits(recording, paths),
        f"Throughput {words.path_words(recording, paths)} is {usual / rate:.0f} times lower than on the"
        f" fastest paths: {words.rate(rate)} against {words.rate(usual)}",
        (
            measured(f"throughput {words.path_words(recording, [path])}", rates[path], "B/s", usual)
            for path in paths[:PATHS_SHOWN]
        ),
        *around,
        words.trace_path(recording, paths, matrix.address_of),
        confidence=Confidence.LIKELY if known else Confidence.POSSIBLE,
        detail=detail,
        severity=unless_over_rdma(recording, Severity.WARNING if known else Severity.INFO),
        reproduced_by=MOVE if around else None,
    )


def _is_faster(way: Way, paths: list[Path], rate: float) -> bool:
    """Whether much more gets through on the same paths in another network."""
    return way.rate(paths) >= path_quality.FASTER_ELSEWHERE_RATIO * rate


def _slow_side(found: Blame, node: int, rates: dict[Path, float]) -> list[Path]:
    """The paths on the sides on which the node is slow."""
    sides = [side for side, nodes in enumerate((found.outbound, found.inbound)) if node in nodes]
    return [path for path in rates if any(path[side] == node for side in sides)]


def _explained(matrix: Matrix) -> Blame:
    """What loses or delays packets is slow for that reason."""
    lossy, late = matrix.lossy, matrix.slow_to_answer
    return Blame(
        everyone=lossy.everyone,
        inbound=(*lossy.nodes, *late.nodes),
        paths=(*lossy.paths, *late.paths),
    )


def _is_told(path: Path, explained: Blame) -> bool:
    told = {path, path[::-1]} & set(explained.paths)
    return explained.everyone or bool(told) or bool(set(path) & set(explained.nodes))
