"""DD538: the network that the backend takes is slower than another one of the same nodes."""

from collections.abc import Iterable, Iterator
from statistics import median, median_high

from ddp_doctor.checks.cluster.connectivity import wording as words
from ddp_doctor.checks.cluster.connectivity.blame import Blame
from ddp_doctor.checks.cluster.connectivity.impaired import unless_over_rdma
from ddp_doctor.checks.cluster.connectivity.matrix import Matrix
from ddp_doctor.checks.cluster.connectivity.ways import MOVE, Way, take, ways
from ddp_doctor.facts.cluster.connectivity import ConnectivityFact
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.interfaces import backend_name
from ddp_doctor.settings.trials import GAIN
from ddp_doctor.views.interfaces import chosen
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import host, in_words, node_pair


# The ranks run all the same: they are tested on what the job would use.
@rule("DD538", "slower-of-two-networks-is-used", Severity.ERROR, ConnectivityFact, ranks="run")
def slower_network_is_used(recording: Recording) -> Iterator[Draft]:
    """A backend that takes one network, while the same nodes reach each other much faster in another one.

    What it finds
        All nodes have addresses in a second network, all paths tested there are well, and the median of single
        throughput samples there is at least twice that of the best samples in the network that gloo or NCCL
        takes; of two nodes the slower direction counts. An error from three times on, of which no more than
        5 Gbit/s is expected. Information where the data goes over RDMA, and where a trial in the other network
        was no faster: a short sample misleads where only a burst is fast. Silent where single nodes, losses or
        late answers explain it: their findings have the same remedy.

    Why it matters
        gloo takes the interface of the host's own name, NCCL the first that it finds, and neither asks how
        fast it is: a job on the management network is many times slower than it could be, and says nothing.

    Remedy
        GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME with each node's interface in the faster network.

    References
        https://docs.pytorch.org/docs/stable/distributed.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        docs/explanation/reach.md
    """
    matrix = Matrix.of(recording)
    way = faster_way(recording)
    if way is None or _is_told(matrix):
        return
    rate, other = used_rate(matrix), _rate_of(way, matrix)
    backend = backend_name(recording.world.backend if recording.world else "gloo")
    mine, theirs = _interfaces_in_use(recording, matrix), _listed(way.interfaces.values())
    ratio = min(other, path_quality.JUDGED_BYTES_PER_S) / rate
    severity = Severity.ERROR if ratio >= path_quality.SLOW_NODE_RATIO else Severity.WARNING
    refuted = _is_refuted(recording)
    yield finding(
        tuple(_culprits(recording, matrix, mine)),
        f"{backend} takes {mine}, where {words.rate(rate)} get through between the nodes; over {theirs} it"
        f" is {words.rate(other)}",
        Evidence(
            text=f"throughput over {mine}, {'the slower direction' if _are_two(matrix) else 'the median'}"
            " of the best samples",
            value=round(rate),
            unit="B/s",
            expected=round(other),
            expected_from=f"{theirs} of the same nodes, one sample for each path",
        ),
        take(recording, way),
        confidence=Confidence.POSSIBLE if refuted else Confidence.LIKELY,
        detail=f"That was one short sample; a trial over {theirs} was no faster."
        if refuted
        else f"All nodes reach each other over {theirs} in {way.network}, {other / rate:.0f} times faster. Which"
        " interface is fast, no backend asks.",
        severity=Severity.INFO if refuted else unless_over_rdma(recording, severity),
        reproduced_by=MOVE,
    )


def faster_way(recording: Recording) -> Way | None:
    """The fastest other network, where it is much faster than the one in use."""
    matrix = Matrix.of(recording)
    found = next(iter(ways(recording)), None)
    if found is None or not matrix.best_rates or any(one.outcome != "ok" for one in matrix.seen.values()):
        return None
    expected = min(_rate_of(found, matrix), path_quality.JUDGED_BYTES_PER_S)
    return found if expected >= path_quality.FASTER_ELSEWHERE_RATIO * used_rate(matrix) else None


def used_rate(matrix: Matrix) -> float:
    """Throughput of the network in use, in bytes per second: chance speaks for it."""
    rates = list(matrix.best_rates.values())
    return min(rates) if _are_two(matrix) else median_high(rates)


def _rate_of(way: Way, matrix: Matrix) -> float:
    return min(one.rate for one in way.seen.values()) if _are_two(matrix) else way.rate()


def _are_two(matrix: Matrix) -> bool:
    return len(matrix.nodes) == 2


def _is_told(matrix: Matrix) -> bool:
    """Whether losses, late answers or slow nodes are found, which recommend the other network themselves."""
    if matrix.lossy != Blame() or max(matrix.answers.values(), default=0.0) >= path_quality.SLOW_ANSWER_S:
        return True
    return not _are_two(matrix) and matrix.slow != Blame()


def _is_refuted(recording: Recording) -> bool:
    """Whether a trial in the other network was no faster, or did not even end."""
    tried = [one for one in recording.experiments if one.code == "DD538"]
    attempts = [attempt for one in tried for attempt in one.attempts]
    there = [one for one in attempts if one.arm == "treatment"]
    here = [one.bytes_per_s for one in attempts if one.arm == "control" and one.bytes_per_s is not None]
    if not there or any(one.outcome != "passed" for one in there):
        return bool(there)
    rates = [one.bytes_per_s for one in there if one.bytes_per_s is not None]
    return bool(rates and here) and median(rates) < GAIN * median(here)


def _interfaces_in_use(recording: Recording, matrix: Matrix) -> str:
    """ "eth0", "eth0 and ens5"; an address where no name is known."""
    taken = {path[1]: peer.address for path, peer in matrix.seen.items()}
    return _listed(words.interface_name(recording, node, one) or one for node, one in taken.items())


def _listed(names: Iterable[str]) -> str:
    return in_words(sorted(set(names)))


def _culprits(recording: Recording, matrix: Matrix, name: str) -> Iterator[Culprit]:
    """The setting that decided, else the interface of each node; of two nodes nobody can tell whose it is."""
    backend = recording.world.backend if recording.world else "gloo"
    settings = {seen.node: chosen(seen.fact, backend).setting for seen in recording.facts(InterfacesFact)}
    if _are_two(matrix) and not any(settings.values()):
        yield node_pair(recording, *matrix.nodes).model_copy(update={"name": name})
        return
    taken = {path[1]: peer.address for path, peer in matrix.seen.items()}
    for node in matrix.nodes:
        setting = settings.get(node)
        yield Culprit(
            kind="setting" if setting else "nic",
            node=host(recording, node),
            node_rank=node,
            name=setting or words.interface_name(recording, node, taken.get(node, "")),
        )
