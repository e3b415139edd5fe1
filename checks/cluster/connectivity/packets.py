"""DD532, DD534, DD536: packets that are dropped, late or lost."""

from collections.abc import Collection, Iterable, Iterator
from statistics import median

from ddp_doctor.checks.cluster.connectivity import wording
from ddp_doctor.checks.cluster.connectivity.matrix import PATHS_SHOWN, Loss, Matrix, is_slow_answer, usual_answer
from ddp_doctor.checks.cluster.connectivity.wording import ANSWER, MOVE, MOVE_MUCH, Way, detour, take, way_out, ways
from ddp_doctor.facts.cluster import ConnectivityFact
from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.path_blame import Blame, Path
from ddp_doctor.wording.findings import finding, proved
from ddp_doctor.wording.nodes import host, hosts, node_culprit


def on_paths(recording: Recording, found: Blame) -> str:
    """Return ``on the paths to and from node2``, for the end of a clause."""
    if found.everyone:
        return "between all nodes"
    if not found.nodes:
        several = len({frozenset(path) for path in found.paths}) > 1
        return f"on the path{'s' * several} {wording.path_words(recording, found.paths)}"
    sides = [side for side, nodes in (("to", found.inbound), ("from", found.outbound)) if nodes]
    return f"on the paths {' and '.join(sides)} {hosts(recording, found.nodes)}"


def blamed(recording: Recording, found: Blame) -> tuple[Culprit, ...]:
    """Return the faulty nodes or, without any, the paths; all nodes if all are affected."""
    named = Matrix.of(recording).nodes if found.everyone else found.nodes
    alone = () if found.nodes else wording.path_culprits(recording, found.paths)
    return (*(node_culprit(recording, node) for node in named), *alone)


def measured(text: str, value: float, unit: str, usual: float | None) -> Evidence:
    """Return a measurement, compared with the usual value of this run if there is one."""
    digits = 0 if unit == "B/s" else 6
    return Evidence(
        text=text,
        value=round(value, digits),
        unit=unit,
        expected=None if usual is None else round(usual, digits),
        expected_from=None if usual is None else "the fastest quarter of the paths of this run",
    )


def touching(paths: Iterable[Path], nodes: Collection[int]) -> set[Path]:
    """Return the paths that start or end at one of the nodes."""
    return {path for path in paths if set(path) & set(nodes)}


def unless_over_rdma(recording: Recording, severity: Severity) -> Severity:
    """Return info instead of the severity if the job's data do not use this path."""
    return Severity.INFO if goes_over_rdma(recording) else severity


def goes_over_rdma(recording: Recording) -> bool:
    """Return True if NCCL has RDMA devices on every node."""
    if not recording.on_nccl:
        return False
    hosts = [node.fact for node in recording.facts(Host)]
    return bool(hosts) and all(host.rdma_devices and not host.rdma_unused_by for host in hosts)


@rule("DD534", "node-answers-slowly", Consequence.SLOWER, ConnectivityFact, ranks="slow")
def node_answers_slowly(recording: Recording) -> Iterator[Draft]:
    """The round trips of a node take several times as long as the others'.

    Finds: Reports shortest round trips, of 10 or more in each direction, that are five times as long as in the fastest
        quarter of the pairs and 5 ms longer. Severity is error from 20 ms, warning below. A node is named if (nearly)
        all its pairs are slow, otherwise the pairs. With two nodes, there is no comparison and severity is warning.
    Why: Nothing hangs, but every collective waits for its slowest answer: 50 ms made a 4 MiB all-reduce eight times
        slower.
    Remedy: If the node is at another site, or behind a tunnel or a proxy, place the job's nodes together.
    See: docs/explanation/connectivity.md
    """
    matrix = Matrix.of(recording)
    answers, found = matrix.answers, matrix.slow_to_answer
    if len(matrix.nodes) == 2:
        slow = [pair for pair, answer_s in answers.items() if answer_s >= path_quality.SLOW_ANSWER_S]
        found = Blame(paths=tuple(path for pair in slow for path in (pair, pair[::-1])))
    for nodes, paths in ((found.nodes, ()), ((), found.paths)):
        pairs = sorted({pair for pair in answers if set(pair) & set(nodes) or pair in paths})
        if pairs:
            part = Blame(inbound=nodes, outbound=nodes, paths=paths)
            yield _slow_answers(recording, matrix, part, pairs)


def _slow_answers(recording: Recording, matrix: Matrix, found: Blame, pairs: list[Path]) -> Draft:
    answers, two = matrix.answers, len(matrix.nodes) == 2
    slow = median(answers[pair] for pair in pairs)
    quick = None  # a network with fast answers between the same nodes
    for way in ways(recording):
        if is_slow_answer(slow, way.answer_s([path for path in way.seen if path in pairs])):
            quick = way
            break
    around = () if quick is None else (take(recording, quick),)
    usual = usual_answer(answers) if not two else quick.answer_s(quick.seen) if quick else None
    severity = Severity.ERROR if slow >= path_quality.VERY_SLOW_ANSWER_S else Severity.WARNING
    who = f"in {quick.network}" if two and quick else "between other nodes"
    against = "" if usual is None else f", but {usual * 1e3:.2f} ms {who}"
    return finding(
        blamed(recording, found),
        f"A round trip takes {slow * 1e3:.1f} ms {on_paths(recording, found)}{against}",
        (
            measured(
                f"shortest round trip {wording.path_words(recording, [pair, pair[::-1]])}",
                answers[pair],
                "s",
                None if two else usual,
            )
            for pair in pairs[:PATHS_SHOWN]
        ),
        *around,
        wording.diagnosis(
            "Place the job's nodes in one site and network, and find out what the path passes through",
            *wording.trace_path(recording, pairs).commands,
            scope="cluster",
        ),
        confidence=Confidence.LIKELY if usual else Confidence.POSSIBLE,
        detail="Every collective waits for its slowest answer. Such times indicate another"
        " site, a tunnel, or a sleeping or overloaded host.",
        severity=unless_over_rdma(recording, Severity.WARNING if usual is None else severity),
        reproduced_by=ANSWER if around else None,
    )


@rule("DD536", "path-loses-packets", Consequence.SLOWER, ConnectivityFact, ranks="slow")
def path_loses_packets(recording: Recording) -> Iterator[Draft]:
    """A path loses packets, according to the kernel's retransmission counters.

    Finds: Reports a path if 1% or more of the round trips of one small packet at a time, and at least three, had to be
        sent again. A node is named if (nearly) all its pairs lose packets, otherwise the pair. Severity is error if the
        losses make small messages three times slower, which they do on any network except a slow one.
    Why: Each loss stops the connection, and therefore every rank, for 0.2 s or more: 5% made every step five times
        slower without any message.
    Remedy: Check the error counters of the interface, then cable, transceiver, port and switch.
    See: RFC 6298
        docs/explanation/connectivity.md
    """
    matrix = Matrix.of(recording)
    losses, found = matrix.losses, matrix.lossy
    for part in (Blame(found.everyone, found.inbound, found.outbound), Blame(paths=found.paths)):
        touched = touching(losses, part.nodes) | (set(losses) & set(part.paths))
        pairs = set(losses) if part.everyone else touched
        if pairs:
            yield _lossy(recording, part, {pair: losses[pair] for pair in sorted(pairs)})


def _lossy(recording: Recording, found: Blame, losses: dict[Path, Loss]) -> Draft:
    lost, trips = (sum(getattr(loss, name) for loss in losses.values()) for name in ("retransmits", "round_trips"))
    around = detour(recording, _loses_little)
    delay_s = lost / trips * path_quality.RETRANSMIT_S
    heavy = delay_s >= (path_quality.SLOW_NODE_RATIO - 1) * median(loss.median_s for loss in losses.values())
    return proved(
        blamed(recording, found),
        f"Packets are lost {on_paths(recording, found)}: {lost} of {trips} round trips needed a retransmission",
        (
            Evidence(
                text=f"{loss.retransmits} of {loss.round_trips} round trips"
                f" {wording.path_words(recording, [pair, pair[::-1]])} needed a retransmission",
                value=round(100 * loss.share, 2),
                unit="%",
                expected=0,
                expected_from="TCP_INFO of healthy paths",
            )
            for pair, loss in list(losses.items())[:PATHS_SHOWN]
        ),
        *around,
        wording.look_at_link(recording, found.nodes or [node for pair in losses for node in pair]),
        detail="Each was one small packet on an otherwise idle path. A loss stops a"
        f" connection for {path_quality.RETRANSMIT_S:g} s or more, and all ranks wait"
        " for it.",
        severity=Severity.ERROR if heavy and not goes_over_rdma(recording) else Severity.WARNING,
        reproduced_by=MOVE_MUCH if around else None,
    )


def _loses_little(way: Way) -> bool:
    """Return True if the kernel counts losses in this network and they may be chance; a trial shows the rest."""
    lost = [peer.retransmits for peer in way.seen.values() if peer.retransmits is not None]
    trips = sum(peer.round_trips for peer in way.seen.values())
    return len(lost) == len(way.seen) and not (trips and Loss(sum(lost), trips, 0.0).is_bad)


@rule("DD532", "path-swallows-large-packets", Consequence.HANGS, ConnectivityFact)
def path_swallows_large_packets(recording: Recording) -> Iterator[Draft]:
    """Small messages arrive on a path, but large ones never do (an MTU black hole).

    Finds: Reports a path if connections, round trips and messages of one small packet work, but a burst of 128 KiB is
        lost twice, on two connections. The finding shows the largest message that passed and the smallest that did not.
        A node is named if (nearly) all its paths are affected, otherwise the pair.
    Why: Packets above a link's limit are dropped without a message, usually because a switch or a tunnel has a smaller
        MTU than the hosts. The job starts, and its first gradient hangs forever.
    Remedy: Set the same MTU along the entire path. Until that is done, set a smaller MTU on the hosts, or
        net.ipv4.tcp_mtu_probing=1.
    See: RFC 2923, RFC 4821
        https://docs.kernel.org/networking/ip-sysctl.html
    """
    matrix = Matrix.of(recording)
    found = matrix.swallowed
    bad = {path for path, peer in matrix.seen.items() if peer.outcome == "burst_lost"}
    if not bad:
        return
    about = touching(bad, found.nodes) if found.nodes else bad
    passed = min(matrix.seen[path].passed_bytes or 0 for path in about)
    lost = min(matrix.seen[path].lost_bytes or 0 for path in about)
    around = way_out(recording)
    yield proved(
        blamed(recording, found),
        f"Large packets are lost {on_paths(recording, found)}: {passed}-byte messages arrive,"
        f" but {lost}-byte messages never do",
        (_swallowed(recording, matrix, path) for path in sorted(about)[:PATHS_SHOWN]),
        *around,
        *_smaller_mtu(recording, matrix, min(about), passed, found),
        detail="Connections and small messages work, so a job starts and hangs in its first"
        " large transfer. A link with a smaller MTU than the hosts silently drops"
        " larger packets.",
        severity=Severity.WARNING if goes_over_rdma(recording) else None,
        reproduced_by=MOVE if around else None,
    )


def _swallowed(recording: Recording, matrix: Matrix, path: Path) -> Evidence:
    peer = matrix.seen[path]
    segments = f", in segments of up to {peer.mss_bytes} bytes" if peer.mss_bytes else ""
    return Evidence(
        text=f"{wording.path_words(recording, [path])} {peer.lost_bytes} bytes do not"
        f" arrive{segments}; longest message that arrives",
        value=peer.passed_bytes,
        unit="B",
        expected=peer.burst_bytes,
        expected_from="any length, in packets that fit",
    )


def _smaller_mtu(recording: Recording, matrix: Matrix, path: Path, passed: int, found: Blame) -> Iterator[Remedy]:
    peer, addresses = matrix.seen[path], matrix.address_of
    yield wording.one_mtu(recording, path[0], peer.address, passed, peer.mss_bytes)
    nodes = matrix.nodes if found.everyone else found.nodes or sorted({*found.paths[0]})
    known = [
        (host(recording, node), interface)
        for node in nodes
        if node in addresses and (interface := wording.interface_with(recording, node, addresses[node])) is not None
    ]
    yield wording.smaller_mtu(known, passed, ipv6=":" in peer.address)
