"""reach: each node's view of the other nodes, and the nodes that all rows together blame."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_doctor.checks.cluster import connectivity
from ddp_doctor.checks.cluster.connectivity import probe
from ddp_doctor.facts.cluster import ConnectivityFact, PeerConnectivity
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.context import Line, Peer, TcpInfo
from ddp_doctor.model.fact import Failed, Skip
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.sources.sockets import Listener, dial
from tests.fakes import FakeContext
from tests.once import free_port
from tests.readings import collected, findings_of
from tests.waiting import LIMIT_S, wait_until

TOKEN = "secret"
PORTS = "32768\t60999\n"


# --- the probe over real connections --------------------------------------------------------------


@dataclass
class RealContext(FakeContext):
    peers: tuple[Peer, ...] = ()
    clock_offset_s: float | None = None

    def clock(self) -> float:
        return time.monotonic()

    def dial(self, address: str, port: int, timeout_s: float) -> Line:
        return dial(address, port, TOKEN, timeout_s)


@pytest.fixture
def listeners() -> Iterator[list[Listener]]:
    three = [Listener() for _ in range(3)]
    for one in three:
        one.admit(TOKEN)
    yield three
    for one in three:
        one.stop()


def peers_of(listeners: Iterable[Listener], address: str = "127.0.0.1") -> tuple[Peer, ...]:
    return tuple(Peer(i + 1, f"node{i + 1}", one.port, address, address) for i, one in enumerate(listeners))


def look(peers: tuple[Peer, ...], **more: Any) -> ConnectivityFact:
    files = {"/proc/sys/net/ipv4/ip_local_port_range": PORTS}
    return probe(RealContext(files=files, peers=peers, deadline=time.monotonic() + LIMIT_S, **more))


def test_row_of_healthy_peers_is_complete(listeners):
    fact = look(peers_of(listeners))

    assert fact.port_range == (32768, 60999)
    assert [peer.node for peer in fact.peers] == [1, 2, 3]
    for peer in fact.peers:
        assert (peer.outcome, peer.error, peer.met_at_outcome) == ("ok", None, None)
        assert peer.round_trips >= path_quality.LEAST_ROUND_TRIPS
        assert peer.connect_s is not None
        assert peer.burst_s is not None
        assert None not in (peer.round_trip_min_s, peer.round_trip_median_s, peer.round_trip_max_s)
        assert peer.retransmits == 0
        assert peer.throughput_bytes_per_s
        assert (peer.passed_bytes, peer.lost_bytes) == (None, None)


def test_stopped_listener_refuses_and_other_peers_are_measured(listeners):
    peers = peers_of(listeners)
    listeners[1].stop()
    with socket.socket() as caller:
        wait_until(lambda: caller.connect_ex(("127.0.0.1", listeners[1].port)) == errno.ECONNREFUSED)

    outcomes = [peer.outcome for peer in look(peers).peers]

    assert outcomes == ["ok", "refused", "ok"]


def test_check_in_address_is_tested_in_addition_to_the_advertised_one(listeners):
    port = listeners[0].port
    well, dead_one = (Peer(n, "n", at, "127.0.0.2", "127.0.0.1") for n, at in ((1, port), (2, free_port())))

    first, second = look((well, dead_one)).peers

    assert (first.outcome, first.met_at_outcome) == ("ok", "ok")
    assert (second.outcome, second.met_at_outcome) == ("refused", "refused")


def test_concurrent_measurements_of_several_nodes_have_no_finding(listeners):
    rows: dict[int, ConnectivityFact] = {}

    def run(node: int) -> None:
        others = [other for other in range(3) if other != node]
        peers = tuple(Peer(other, f"node{other}", listeners[other].port, "127.0.0.1", "127.0.0.1") for other in others)
        rows[node] = look(peers, node=node)

    threads = [threading.Thread(target=run, args=(node,)) for node in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recording = recorded(rows, World(nnodes=3, world_size=3))

    assert found(recording) == []
    measured = list(connectivity.measurements(recording))
    assert {one.name for one in measured} == {"reach_round_trip", "reach_throughput"}
    assert len(measured) == 12
    assert all(one.value > 0 for one in measured)


def test_single_node_has_no_peer_to_dial():
    with pytest.raises(Skip):
        probe(RealContext())


def test_port_range_is_unknown_if_the_kernel_does_not_show_it(listeners):
    context = RealContext(peers=peers_of(listeners[:1]), deadline=time.monotonic() + LIMIT_S)

    assert probe(context).port_range is None


# --- the probe over made-up paths -----------------------------------------------------------------


@dataclass
class Wire:
    """The behavior of a simulated path. A transfer over it takes no real time."""

    round_trip_s: float = 0.0001
    bytes_per_s: float = 1e9
    largest: int | None = None  # the largest message that passes
    loses_every: int | None = None
    breaks_after: int | None = None  # round trips
    hiccups: int = 0  # bursts that are lost by chance
    busy: bool = False
    told: bool = True  # the kernel has TCP_INFO
    lines: list["FakeLine"] = field(default_factory=list)


class FakeLine:
    def __init__(self, wire: Wire) -> None:
        self.wire, self.trips, self.lost, self.closed = wire, 0, 0, False

    def round_trip(self, timeout_s: float) -> float:
        self.trips += 1
        if self.wire.breaks_after is not None and self.trips > self.wire.breaks_after:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        if self.wire.loses_every and self.trips % self.wire.loses_every == 0:
            self.lost += 1
            return self.wire.round_trip_s + path_quality.RETRANSMIT_S
        return self.wire.round_trip_s

    def send(self, size: int, timeout_s: float) -> float:
        if self.wire.busy and size > path_quality.BURST_BYTES:
            raise OSError(errno.EBUSY, "busy")
        if size == path_quality.BURST_BYTES and self.wire.hiccups:
            self.wire.hiccups -= 1
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        if self.wire.largest is not None and size > self.wire.largest:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        if size / self.wire.bytes_per_s > timeout_s:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        return size / self.wire.bytes_per_s

    def tcp(self) -> TcpInfo | None:
        return TcpInfo(self.lost, 1448) if self.wire.told else None

    def close(self) -> None:
        self.closed = True


@dataclass
class WireContext(FakeContext):
    """``wires`` by address: a path, or what dialling there raises."""

    peers: tuple[Peer, ...] = ()
    clock_offset_s: float | None = None
    wires: Mapping[str, Wire | OSError] = field(default_factory=dict)
    dials: list[str] = field(default_factory=list)

    def dial(self, address: str, port: int, timeout_s: float) -> Line:
        self.dials.append(address)
        wire = self.wires[address]
        if isinstance(wire, OSError):
            raise wire
        line = FakeLine(wire)
        wire.lines.append(line)
        return line


def seen_of(*wires: Wire | OSError) -> list[PeerConnectivity]:
    return list(context_of(*wires)[1].peers)


def context_of(*wires: Wire | OSError) -> tuple[WireContext, ConnectivityFact]:
    peers = tuple(Peer(i, f"node{i}", 40000, f"10.0.0.{i}", f"10.0.0.{i}") for i, _ in enumerate(wires))
    context = WireContext(peers=peers, wires={f"10.0.0.{i}": wire for i, wire in enumerate(wires)})
    return context, probe(context)


def oserror(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (oserror(errno.ECONNREFUSED), "refused"),
        (oserror(errno.ECONNRESET), "refused"),
        (oserror(errno.ETIMEDOUT), "timed_out"),
        (TimeoutError("timed out"), "timed_out"),
        (oserror(errno.EHOSTUNREACH), "unreachable"),
        (oserror(errno.ENETUNREACH), "unreachable"),
        (oserror(errno.EPERM), "denied"),
        (oserror(errno.ETIME), "mute"),
        (oserror(errno.EPROTO), "foreign"),
        (oserror(errno.EMFILE), "failed"),
    ],
)
def test_failure_to_connect_determines_the_outcome(error, outcome):
    (peer, well) = seen_of(error, Wire())

    assert peer.outcome == outcome
    assert peer.errno == error.errno
    assert peer.error
    assert (peer.round_trips, peer.throughput_bytes_per_s) == (0, ())
    assert well.outcome == "ok"


def test_a_dropped_dial_is_tried_again_and_a_refused_one_is_not():
    context, _ = context_of(oserror(errno.ETIMEDOUT), oserror(errno.ECONNREFUSED), Wire())

    assert context.dials.count("10.0.0.0") == path_quality.DIALS
    assert context.dials.count("10.0.0.1") == 1


def test_host_that_cannot_dial_at_all_fails():
    with pytest.raises(Failed, match="Too many open files"):
        context_of(oserror(errno.EMFILE), oserror(errno.EMFILE))


@pytest.mark.parametrize(("largest", "passed", "lost"), [(1460, 1440, 4000), (1400, 1300, 1440), (8948, 8000, 131072)])
def test_black_hole_is_measured_by_the_largest_size_that_passes(largest, passed, lost):
    (peer, well) = seen_of(Wire(largest=largest), Wire())

    assert (peer.outcome, peer.passed_bytes, peer.lost_bytes) == ("burst_lost", passed, lost)
    assert peer.round_trips >= path_quality.LEAST_ROUND_TRIPS
    assert (peer.burst_s, peer.throughput_bytes_per_s) == (None, ())
    assert well.outcome == "ok"


def test_burst_lost_once_by_chance_is_not_a_black_hole():
    (peer,) = seen_of(Wire(hiccups=1))

    assert (peer.outcome, peer.lost_bytes) == ("ok", None)
    assert peer.burst_s is not None
    assert peer.throughput_bytes_per_s


def test_path_that_stops_carrying_data_is_broken_not_a_black_hole():
    assert seen_of(Wire(largest=100))[0].outcome == "broken"
    assert seen_of(Wire(breaks_after=5))[0].outcome == "broken"


def test_a_path_that_loses_packets_gets_more_round_trips():
    lossy, well = seen_of(Wire(loses_every=20), Wire())

    assert lossy.round_trips == path_quality.ROUND_TRIPS + path_quality.AGAIN_ROUND_TRIPS
    assert lossy.retransmits == lossy.round_trips // 20
    assert (well.round_trips, well.retransmits) == (path_quality.ROUND_TRIPS, 0)


def test_a_kernel_that_does_not_count_leaves_the_losses_unknown():
    (peer,) = seen_of(Wire(told=False))

    assert (peer.outcome, peer.retransmits, peer.mss_bytes) == ("ok", None, None)


def test_a_slow_peer_is_measured_again():
    slow, well = seen_of(Wire(bytes_per_s=10e6), Wire())

    assert len(slow.throughput_bytes_per_s) == 2 * path_quality.SAMPLES
    assert len(well.throughput_bytes_per_s) == path_quality.SAMPLES
    assert max(slow.throughput_bytes_per_s) == pytest.approx(10e6)


def test_unfinished_transfer_counts_as_its_maximum_size():
    (peer,) = seen_of(Wire(bytes_per_s=90e3))

    assert peer.outcome == "ok"
    assert peer.throughput_bytes_per_s == (path_quality.SAMPLE_BYTES / path_quality.TRANSFER_S,)


def test_busy_peer_has_no_throughput_sample():
    (peer,) = seen_of(Wire(busy=True))

    assert (peer.outcome, peer.throughput_bytes_per_s) == ("ok", ())


def test_every_line_is_closed():
    wires = [Wire(), Wire(largest=1460), Wire(breaks_after=3), Wire(busy=True), Wire(hiccups=1)]
    context_of(*wires)

    assert all(line.closed for wire in wires for line in wire.lines)


def test_check_in_address_is_dialed_only_if_different():
    peers = (
        Peer(0, "node0", 1, "172.17.0.1", "10.0.0.0"),
        Peer(1, "node1", 1, "10.0.0.1", "::ffff:10.0.0.1"),
        Peer(2, "node2", 1, "10.0.0.2", ""),
    )
    refused = oserror(errno.ECONNREFUSED)
    wires: dict[str, Wire | OSError] = {"172.17.0.1": refused} | {f"10.0.0.{i}": Wire() for i in range(3)}

    first, second, third = probe(WireContext(peers=peers, wires=wires)).peers

    assert (first.outcome, first.met_at_outcome) == ("refused", "ok")
    assert (second.outcome, second.met_at_outcome) == ("ok", None)
    assert (third.outcome, third.met_at_outcome) == ("ok", None)


# --- rules over the matrix ------------------------------------------------------------------------

Change = Callable[[int, int], Mapping[str, Any] | None]


def peer_seen(node: int, changes: Mapping[str, Any] | None = None) -> PeerConnectivity:
    well = {
        "node": node,
        "hostname": f"node{node}",
        "address": f"10.0.0.{node + 1}",
        "met_at": f"10.0.0.{node + 1}",
        "port": 40000 + node,
        "outcome": "ok",
        "connect_s": 0.001,
        "round_trips": 100,
        "round_trip_min_s": 0.00005,
        "round_trip_median_s": 0.0002,
        "round_trip_max_s": 0.003,
        "retransmits": 0,
        "mss_bytes": 1448,
        "burst_bytes": path_quality.BURST_BYTES,
        "burst_s": 0.001,
        "throughput_bytes_per_s": (1.1e9, 1.2e9, 1.0e9),
    }
    return PeerConnectivity.model_validate({**well, **(changes or {})})


def recorded(rows: Mapping[int, ConnectivityFact], world: World) -> Recording:
    return Recording(world=world, readings=tuple(collected("connectivity", row, node) for node, row in rows.items()))


def matrix(nodes: int, change: Change, rows: Iterable[int]) -> Recording:
    """The rows of some of these nodes."""
    facts = {
        node: ConnectivityFact(
            peers=tuple(peer_seen(other, change(node, other)) for other in range(nodes) if other != node),
            port_range=(32768, 60999),
        )
        for node in rows
    }
    hosts = tuple(
        Node(node_rank=i, hostname=f"node{i}", addresses={"eth0": (f"10.0.0.{i + 1}",)}) for i in range(nodes)
    )
    return recorded(facts, World(nnodes=nodes, world_size=nodes, backend="gloo", nodes=hosts))


found = partial(findings_of, connectivity.CHECK)

DEAD: dict[str, Any] = {
    "outcome": "timed_out",
    "error": "timed out",
    "connect_s": None,
    "round_trips": 0,
    "round_trip_min_s": None,
    "round_trip_median_s": None,
    "round_trip_max_s": None,
    "retransmits": None,
    "mss_bytes": None,
    "burst_s": None,
    "throughput_bytes_per_s": (),
}
HOLE = {"outcome": "burst_lost", "passed_bytes": 1440, "lost_bytes": 4000, "burst_s": None} | {
    "throughput_bytes_per_s": (),
    "mss_bytes": 8948,
}
THIN = {"throughput_bytes_per_s": (11e6, 12e6, 11.5e6)}
FAR = {"round_trip_min_s": 0.050, "round_trip_median_s": 0.0504, "throughput_bytes_per_s": (3e6, 4e6)}
LOSSY = {"retransmits": 7, "round_trip_max_s": 0.42, "throughput_bytes_per_s": (70e6, 900e6, 20e6)}

#: the code, the path's state, and whether the fault has one direction
FAULTS = {
    "blocked": ("DD530", DEAD, True),
    "hole": ("DD532", HOLE, False),
    "thin": ("DD533", THIN, False),
    "far": ("DD534", FAR, False),
    "lossy": ("DD536", LOSSY, False),
}
PATH_CODES = {"blocked": "DD531"}


@pytest.mark.parametrize("kind", FAULTS)
@settings(max_examples=30)
@given(nodes=st.integers(4, 9), data=st.data())
def test_only_the_bad_node_or_path_is_reported_even_with_missing_rows(kind: str, nodes: int, data: st.DataObject):
    code, fault, one_way = FAULTS[kind]
    bad = data.draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=2))
    rows = data.draw(st.just(set(range(nodes))) | st.sets(st.integers(0, nodes - 1), min_size=1))
    is_node = len(bad) == 1
    told = found(matrix(nodes, lambda a, b: fault if bad <= ({b} if one_way and is_node else {a, b}) else None, rows))

    names = {f"node{node}" for node in bad}
    ends = [{one.node, one.peer_node} - {None} for finding in told for one in finding.culprits]
    assert all(names <= end for end in ends)
    if len(rows) == nodes:
        assert ends == [names]
        assert [one.code for one in told] == [code if is_node else PATH_CODES.get(kind, code)]
