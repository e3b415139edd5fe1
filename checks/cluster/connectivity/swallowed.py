"""DD532: a path that swallows large packets."""

from collections.abc import Iterator

from ddp_doctor.checks.cluster.connectivity import wording as words
from ddp_doctor.checks.cluster.connectivity.blame import Blame, Path
from ddp_doctor.checks.cluster.connectivity.impaired import blamed, goes_over_rdma, on_paths, touching
from ddp_doctor.checks.cluster.connectivity.matrix import PATHS_SHOWN, Matrix
from ddp_doctor.checks.cluster.connectivity.ways import MOVE, way_out
from ddp_doctor.facts.cluster.connectivity import ConnectivityFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.context import Interface
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import host


@rule("DD532", "path-swallows-large-packets", Severity.ERROR, ConnectivityFact)
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
    about = touching(bad, found.nodes) if found.nodes else bad
    passed = min(matrix.seen[path].passed_bytes or 0 for path in about)
    lost = min(matrix.seen[path].lost_bytes or 0 for path in about)
    around = way_out(recording)
    yield proved(
        blamed(recording, found, matrix.nodes),
        f"{on_paths(recording, found)} large packets are swallowed: messages of {passed} bytes arrive,"
        f" of {lost} bytes never",
        (_swallowed(recording, matrix, path) for path in sorted(about)[:PATHS_SHOWN]),
        *around,
        *_mend_mtu(recording, matrix, min(about), passed, found),
        detail="Connections and small messages work, so a job starts; its first large transfer hangs. Some link"
        " has a smaller MTU than the hosts and drops what is larger without saying so.",
        severity=Severity.WARNING if goes_over_rdma(recording) else None,
        reproduced_by=MOVE if around else None,
    )


def _swallowed(recording: Recording, matrix: Matrix, path: Path) -> Evidence:
    peer = matrix.seen[path]
    segments = f", in segments of up to {peer.mss_bytes} bytes" if peer.mss_bytes else ""
    return Evidence(
        text=f"{words.path_words(recording, [path])} {peer.lost_bytes} bytes do not arrive{segments}; the longest"
        " message that does",
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
