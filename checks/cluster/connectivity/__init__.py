"""Reach: does every node reach every other, on ephemeral ports, with large packets, fast enough?

Raw input: none; each node dials the others on the addresses that the backend will advertise, e.g. ::

    node1 -> node2 10.77.0.3:41873   timed out after 3.2 s
    node1 -> node3 10.77.0.4:35121   0.21 ms, 1.2 GB/s

A firewall that is open for the rendezvous alone hangs the job without a word, because gloo, NCCL and the
workers' own store listen on ports that the kernel chooses. A path that swallows large packets lets the job
start and hangs its first gradient. A slow node slows all. One row shows a failure, the rows of all show whose.
"""

import threading
from collections.abc import Callable, Iterable, Iterator

from ddp_doctor.checks.cluster.connectivity import blocked, packets, slow, wording
from ddp_doctor.checks.cluster.connectivity.matrix import plain_address
from ddp_doctor.checks.cluster.connectivity.measure import Dialled, ShortMeasurement
from ddp_doctor.facts.cluster import ConnectivityFact
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import NodesContext, Peer
from ddp_doctor.model.fact import Failed, Skip
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.kernel_files import port_range


def probe(ctx: NodesContext) -> ConnectivityFact:
    """Meet all peers at once, then measure the throughput to one after the other, then what is doubtful.

    Raises Skip without peers, and Failed where this host cannot dial at all (no file descriptors left).
    """
    if not ctx.peers:
        raise Skip("there is no other node to dial")
    dialled = [Dialled(ctx, peer) for peer in ctx.peers]
    met_elsewhere = [dial for dial, peer in zip(dialled, ctx.peers, strict=True) if _came_from_elsewhere(peer)]
    _in_daemon_threads([*(dial.meet for dial in dialled), *(dial.try_met_at for dial in met_elsewhere)])
    measurements = [[ShortMeasurement(ctx, peer, way) for way in peer.others] for peer in ctx.peers]
    elsewhere = [measurement for row in measurements for measurement in row]
    _in_daemon_threads([measurement.meet for measurement in elsewhere])
    sample_s = min(path_quality.SAMPLE_S, path_quality.TRANSFERS_S / path_quality.SAMPLES / len(dialled))
    for dial in dialled:
        dial.measure(path_quality.SAMPLES, sample_s)
    elsewhere = [measurement for row in measurements for measurement in row]
    until = min(ctx.clock() + path_quality.OTHER_SAMPLES_S, ctx.deadline - 1.0)  # the time of all of them
    for measurement in elsewhere:
        measurement.sample(min(path_quality.SAMPLE_S, path_quality.OTHER_SAMPLES_S / len(elsewhere)), until)
    _in_daemon_threads([dial.again for dial in dialled if dial.lost_packets])
    for dial in _doubtful(dialled, elsewhere):
        dial.measure(path_quality.SAMPLES, 2 * sample_s)
    peers = tuple(
        dial.result(tuple(measurement.result() for measurement in row))
        for dial, row in zip(dialled, measurements, strict=True)
    )
    if all(peer.outcome == "failed" for peer in peers):
        raise Failed(f"no other node could be dialled: {wording.system_words(peers[0].error)}")
    return ConnectivityFact(peers=peers, port_range=port_range(ctx))


def _came_from_elsewhere(peer: Peer) -> bool:
    try:
        return plain_address(peer.met_at) != plain_address(peer.address)
    except ValueError:
        return False


def _in_daemon_threads(calls: Iterable[Callable[[], None]]) -> None:
    """In daemon threads, each of which ends by itself; whoever ends us does not wait for them."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _doubtful(dialled: list[Dialled], elsewhere: list[ShortMeasurement]) -> list[Dialled]:
    """The peers that looked slow against the others of this row, or other networks: by chance, perhaps."""
    rates = [min(measurement.rate, path_quality.JUDGED_BYTES_PER_S) for measurement in elsewhere]
    best = max([*(dial.rate or 0.0 for dial in dialled), *rates], default=0.0)
    slow = [dial for dial in dialled if (dial.rate or best) * path_quality.DOUBTFUL_RATIO < best]
    return [dial for dial in slow if not dial.lost_packets]  # that explains it


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Round trip and throughput of each path, as the node that dialled saw it."""
    for node in recording.facts(ConnectivityFact):
        for peer in node.fact.peers:
            labels: dict[str, str | int | float] = {"node": node.node, "peer": peer.node}
            if peer.round_trip_min_s is not None:
                yield Measurement(name="reach_round_trip", value=peer.round_trip_min_s, unit="s", labels=labels)
            if peer.throughput_bytes_per_s:
                rate = max(peer.throughput_bytes_per_s)
                yield Measurement(name="reach_throughput", value=rate, unit="B/s", labels=labels)


CHECK = Check(
    id="connectivity",
    title="Every node reaches every other",
    where=Where.NODES,
    probe=probe,
    facts=(ConnectivityFact,),
    rules=rules_in(blocked, packets, slow),
    cost_s=0.6,
    is_essential=True,
    deadline_s=12.0,
    measurements=measurements,
    stops_ranks=True,
)
