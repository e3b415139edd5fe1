"""Rules about paths that exist and do not do: they swallow, lose or delay packets, or are thin."""

from collections.abc import Collection, Iterable, Iterator
from statistics import median

from ddp_doctor.checks.reach.facts import ReachFact
from ddp_doctor.checks.reach.matrix import Loss, Matrix, usual_answer
from ddp_doctor.knowledge import network
from ddp_doctor.knowledge.blame import Blame, Path
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.context import Interface
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases import reach as words
from ddp_doctor.phrases.nodes import host, node_culprit

#: So many paths are shown one by one.
_SHOWN = 3


@rule("DD532", "path-swallows-large-packets", Severity.ERROR, ReachFact)
def swallows_large_packets(recording: Recording) -> Iterator[Draft]:
    """A path on which small messages arrive and large ones never do: an MTU black hole.

    What it finds
        Connections and round trips that work, and a burst of 128 KiB that is lost twice, on two connections,
        while messages of one small packet pass. The largest that passed and the smallest that did not are
        told. A node is named where (nearly) all its paths do it, else the pair.

    Why it matters
        Packets larger than some link takes are dropped without a word, mostly because a switch or a tunnel
        has a smaller MTU than the hosts. The job starts, and its first gradient hangs for ever.

    Remedy
        One MTU along the path; until then a smaller MTU on the hosts, or net.ipv4.tcp_mtu_probing=1.

    References
        RFC 2923, RFC 4821
        https://docs.kernel.org/networking/ip-sysctl.html
    """
    matrix = Matrix.of(recording)
    found = matrix.swallowed
    bad = {path for path, peer in matrix.seen.items() if peer.outcome == "burst_lost"}
    if not bad:
        return
    about = _touching(bad, found.nodes) if found.nodes else bad
    passed = min(matrix.seen[path].passed_bytes or 0 for path in about)
    lost = min(matrix.seen[path].lost_bytes or 0 for path in about)
    yield Draft(
        title=f"{_paths(recording, found)} large packets are swallowed: messages of {passed} bytes arrive,"
        f" of {lost} bytes never",
        detail="Connections and small messages work, so a job starts; its first large transfer hangs. Some link"
        " has a smaller MTU than the hosts and drops what is larger without saying so.",
        confidence=Confidence.PROVED,
        culprits=_culprits(recording, found, matrix.nodes),
        evidence=tuple(_swallowed(recording, matrix, path) for path in sorted(about)[:_SHOWN]),
        remedies=tuple(_mend_mtu(recording, matrix, min(about), passed, found)),
        severity=Severity.WARNING if _rdma(recording) else None,
    )


@rule("DD533", "node-is-slow-to-its-peers", Severity.ERROR, ReachFact)
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
    paths = [path for path in found.paths if matrix.is_slow(path, network.SLOW_PATH_RATIO)]
    paths = [path for path in paths if not _is_told(path, explained)]
    if paths:
        yield _slow_paths(recording, matrix, paths)


@rule("DD534", "node-answers-slowly", Severity.ERROR, ReachFact)
def slow_answers(recording: Recording) -> Iterator[Draft]:
    """A node whose round trips take several times as long as those of the others.

    What it finds
        Shortest round trips, of 10 or more each way, that are five times those of the fastest quarter of the
        pairs and 5 ms longer. An error from 20 ms on, below it a warning. A node is named where (nearly) all
        its pairs are slow, else the pairs. Two nodes have nobody to compare with: information.

    Why it matters
        Nothing hangs, and every collective waits for its slowest answer: 50 ms made a 4 MiB all-reduce eight
        times slower.

    Remedy
        Is the node in another site, or behind a tunnel or a proxy? Then place the job's nodes together.

    References
        docs/explanation/reach.md
    """
    matrix = Matrix.of(recording)
    answers, found = matrix.answers, matrix.slow_to_answer
    if len(matrix.nodes) == 2:
        found = Blame(paths=tuple(pair for pair, one in answers.items() if one >= network.SLOW_ANSWER_S))
    for nodes, paths in ((found.nodes, ()), ((), found.paths)):
        pairs = sorted({pair for pair in answers if set(pair) & set(nodes) or pair in paths})
        if pairs:
            part = Blame(inbound=nodes, outbound=nodes, paths=paths)
            yield _slow_answers(recording, matrix, part, pairs, answers)


@rule("DD536", "path-loses-packets", Severity.ERROR, ReachFact)
def loses_packets(recording: Recording) -> Iterator[Draft]:
    """A path on which packets get lost, as the kernel counts what it had to send again.

    What it finds
        Round trips of one small packet, one at a time, of which 1 % or more, and three at least, had to be
        sent again. A node is named where (nearly) all its pairs lose packets, else the pair. An error where
        the losses make small messages three times slower, which they do on any network but a slow one.

    Why it matters
        Each loss stops the connection for 0.2 s or more, and with it every rank: 5 % made every step five
        times slower, and nothing is printed.

    Remedy
        Error counters of the interface, then cable, transceiver, port and switch.

    References
        RFC 6298
        docs/explanation/reach.md
    """
    matrix = Matrix.of(recording)
    losses, found = matrix.losses, matrix.lossy
    for part in (Blame(found.everyone, found.inbound, found.outbound), Blame(paths=found.paths)):
        touched = _touching(losses, part.nodes) | (set(losses) & set(part.paths))
        pairs = set(losses) if part.everyone else touched
        if pairs:
            yield _lossy(recording, matrix, part, {pair: losses[pair] for pair in sorted(pairs)})


# --- drafts -----------------------------------------------------------------------------------------------


def _slow_nodes(recording: Recording, matrix: Matrix, nodes: list[int], found: Blame) -> Draft:
    rates, usual = matrix.best_rates, matrix.usual_rate
    mine = {node: median(rates[path] for path in _slow_side(found, node, rates)) for node in nodes}
    rate, names = median(mine.values()), words.hosts(recording, nodes)
    ratio, verb, its = usual / rate, *(("is", "its") if len(nodes) == 1 else ("are", "their"))
    of_three = len(matrix.nodes) == 3 and ratio < network.SLOW_OF_THREE_RATIO
    part = Blame(
        inbound=tuple(node for node in found.inbound if node in nodes),
        outbound=tuple(node for node in found.outbound if node in nodes),
    )
    return Draft(
        title=f"{names} {verb} {ratio:.0f} times slower than {its} peers: {_rate(rate)} against {_rate(usual)}",
        detail=f"{_paths(recording, part)} little gets through, between the others much more: a thin or"
        f" faulty link, traffic shaping, or a host without a free CPU. Collectives with {names} run at that speed.",
        confidence=Confidence.LIKELY,
        culprits=tuple(node_culprit(recording, node) for node in nodes),
        evidence=tuple(
            _measured(
                f"throughput of {host(recording, node)}: best of each of its slow paths, and their median",
                one,
                "B/s",
                usual,
            )
            for node, one in list(mine.items())[:_SHOWN]
        ),
        remedies=(_look(recording, matrix, nodes),),
        severity=_over_rdma(recording, Severity.WARNING if of_three else Severity.ERROR),
    )


def _slow_paths(recording: Recording, matrix: Matrix, paths: list[Path]) -> Draft:
    rates, usual = matrix.best_rates, matrix.usual_rate
    rate = median(rates[path] for path in paths)
    few = len(paths) <= max(2, len(rates) * network.FEW_PATHS_SHARE)
    known = few and len(matrix.nodes) > 2
    detail = "The other paths of these nodes are faster." if known else "Perhaps the network is built so."
    return Draft(
        title=f"Throughput {words.path_words(recording, paths)} is {usual / rate:.0f} times lower than on the"
        f" fastest paths: {_rate(rate)} against {_rate(usual)}",
        detail=detail,
        confidence=Confidence.LIKELY if known else Confidence.POSSIBLE,
        culprits=words.path_culprits(recording, paths),
        evidence=tuple(
            _measured(f"throughput {words.path_words(recording, [path])}", rates[path], "B/s", usual)
            for path in paths[:_SHOWN]
        ),
        remedies=(words.trace_path(recording, paths, matrix.address_of),),
        severity=_over_rdma(recording, Severity.WARNING if known else Severity.INFO),
    )


def _slow_answers(
    recording: Recording, matrix: Matrix, found: Blame, pairs: list[Path], answers: dict[Path, float]
) -> Draft:
    slow = median(answers[pair] for pair in pairs)
    two = len(matrix.nodes) == 2
    usual = None if two else usual_answer(answers)
    severity = Severity.ERROR if slow >= network.VERY_SLOW_ANSWER_S else Severity.WARNING
    against = "" if usual is None else f" against {usual * 1e3:.2f} ms between the others"
    return Draft(
        title=f"{_paths(recording, found)} a round trip takes {slow * 1e3:.1f} ms{against}",
        detail="Every collective waits for its slowest answer. Such times are those of another site, of a tunnel"
        " or of a host that is asleep or overloaded.",
        confidence=Confidence.LIKELY if usual else Confidence.POSSIBLE,
        culprits=_culprits(recording, found, matrix.nodes),
        evidence=tuple(
            _measured(
                f"shortest round trip {words.path_words(recording, [pair, pair[::-1]])}",
                answers[pair],
                "s",
                usual,
            )
            for pair in pairs[:_SHOWN]
        ),
        remedies=(
            Remedy(
                summary="Place the nodes of a job in one site and network; find what the path leads through",
                commands=words.trace_path(recording, pairs, matrix.address_of).commands,
                scope="cluster",
                cost="none: a diagnosis, not a cure",
                proof=words.ADMIN,
            ),
        ),
        severity=Severity.INFO if two else _over_rdma(recording, severity),
    )


def _lossy(recording: Recording, matrix: Matrix, found: Blame, losses: dict[Path, Loss]) -> Draft:
    lost, trips = (
        sum(getattr(one, name) for one in losses.values()) for name in ("retransmits", "round_trips")
    )
    delay_s = lost / trips * network.RETRANSMIT_S
    heavy = delay_s >= (network.SLOW_NODE_RATIO - 1) * median(one.median_s for one in losses.values())
    return Draft(
        title=f"{_paths(recording, found)} packets get lost: {lost} of {trips} round trips had to be sent again",
        detail=f"Each of them was one small packet on a path without other traffic of ours. A loss stops a"
        f" connection for {network.RETRANSMIT_S:g} s or more, and all ranks wait for it.",
        confidence=Confidence.PROVED,
        culprits=_culprits(recording, found, matrix.nodes),
        evidence=tuple(
            Evidence(
                check="reach",
                text=f"{one.retransmits} of {one.round_trips} round trips"
                f" {words.path_words(recording, [pair, pair[::-1]])} sent again",
                value=round(one.share, 4),
                expected=0,
                expected_from="TCP_INFO of healthy paths",
            )
            for pair, one in list(losses.items())[:_SHOWN]
        ),
        remedies=(_look(recording, matrix, found.nodes or [node for pair in losses for node in pair]),),
        severity=Severity.ERROR if heavy and not _rdma(recording) else Severity.WARNING,
    )


# --- words and numbers ------------------------------------------------------------------------------------


def _paths(recording: Recording, found: Blame) -> str:
    """ "On all paths to and from node2,", to begin a sentence with."""
    if found.everyone:
        return "Between all nodes"
    if not found.nodes:
        return f"On the path {words.path_words(recording, found.paths)}"
    sides = [side for side, nodes in (("to", found.inbound), ("from", found.outbound)) if nodes]
    return f"On the paths {' and '.join(sides)} {words.hosts(recording, found.nodes)}"


def _culprits(recording: Recording, found: Blame, nodes: Iterable[int]) -> tuple[Culprit, ...]:
    named = nodes if found.everyone else found.nodes
    alone = () if found.nodes else words.path_culprits(recording, found.paths)
    return (*(node_culprit(recording, node) for node in named), *alone)


def _measured(text: str, value: float, unit: str, usual: float | None) -> Evidence:
    digits = 0 if unit == "B/s" else 6
    return Evidence(
        check="reach",
        text=text,
        value=round(value, digits),
        unit=unit,
        expected=None if usual is None else round(usual, digits),
        expected_from=None if usual is None else "the fastest quarter of the paths of this run",
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 10e6 else f"{bytes_per_s / 1e6:.2f} MB/s"


def _swallowed(recording: Recording, matrix: Matrix, path: Path) -> Evidence:
    peer = matrix.seen[path]
    segments = f"; the kernel sends segments of up to {peer.mss_bytes} bytes" if peer.mss_bytes else ""
    return Evidence(
        check="reach",
        text=f"{words.path_words(recording, [path])}: {peer.passed_bytes} bytes arrive, {peer.lost_bytes} do"
        f" not{segments}",
        value=peer.passed_bytes,
        unit="B",
        expected=peer.burst_bytes,
        expected_from="a path carries any length, in packets that fit",
    )


def _mend_mtu(
    recording: Recording, matrix: Matrix, path: Path, passed: int, found: Blame
) -> Iterator[Remedy]:
    peer, addresses = matrix.seen[path], matrix.address_of
    yield words.one_mtu(recording, path[0], peer.address, passed, peer.mss_bytes)
    nodes = matrix.nodes if found.everyone else found.nodes or sorted({*found.paths[0]})
    known = [
        (host(recording, node), one)
        for node in nodes
        if (one := _interface(recording, addresses, node)) is not None
    ]
    yield words.smaller_mtu(known, passed, ipv6=":" in peer.address)


def _interface(recording: Recording, addresses: dict[int, str], node: int) -> Interface | None:
    return words.interface_with(recording, node, addresses[node]) if node in addresses else None


def _look(recording: Recording, matrix: Matrix, nodes: Iterable[int]) -> Remedy:
    addresses = matrix.address_of
    known = {node: words.interface_name(recording, node, addresses.get(node, "")) for node in nodes}
    return words.look_at_link([(host(recording, node), name or "INTERFACE") for node, name in known.items()])


# --- judging ----------------------------------------------------------------------------------------------


def _touching(paths: Iterable[Path], nodes: Collection[int]) -> set[Path]:
    return {path for path in paths if set(path) & set(nodes)}


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


def _over_rdma(recording: Recording, severity: Severity) -> Severity:
    """Information where the data does not take this path at all."""
    return Severity.INFO if _rdma(recording) else severity


def _rdma(recording: Recording) -> bool:
    """Whether NCCL has RDMA devices on every node. The facts are looked at as they are recorded."""
    if recording.world is None or recording.world.backend != "nccl":
        return False
    hosts = [one.fact for one in recording.readings if one.fact and one.fact.get("kind") == "host/1"]
    return bool(hosts) and all(one.get("rdma_devices") and not one.get("rdma_unused_by") for one in hosts)


RULES = (swallows_large_packets, slow_node, slow_answers, loses_packets)
