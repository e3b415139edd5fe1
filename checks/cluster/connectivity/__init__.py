"""Connectivity: whether every node reaches every other on ephemeral ports, with large packets, fast enough.

Raw input: none; each node dials the others on the addresses that the backend will advertise, for example::

    node1 -> node2 10.77.0.3:41873   timed out after 3.2 s
    node1 -> node3 10.77.0.4:35121   0.21 ms, 1.2 GB/s

Why it matters: gloo, NCCL and the workers' own store listen on ports that the kernel chooses. If a firewall allows only
the rendezvous port, the job hangs without a message. If a path drops large packets, the job starts and hangs in its
first gradient. A slow node slows all nodes. One row shows a failure; the rows of all nodes show which node causes it.
"""

import contextlib
import errno
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

from ddp_doctor.checks.cluster.connectivity import blocked, packets, slow, wording
from ddp_doctor.facts.cluster import ConnectivityFact, OtherConnectivity, Outcome, PeerConnectivity
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.knowledge.network.addresses import plain_address
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Line, NodesContext, OtherWay, Peer
from ddp_doctor.model.fact import Failed, Skip
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.kernel_files import port_range

_OUTCOMES: dict[int | None, Outcome] = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "refused",
    errno.ETIMEDOUT: "timed_out",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ENETDOWN: "unreachable",
    errno.EPERM: "denied",
    errno.EACCES: "denied",
    errno.ETIME: "mute",
    errno.EPROTO: "foreign",
}


def probe(ctx: NodesContext) -> ConnectivityFact:
    """Connect to all peers in parallel, measure the throughput to each in turn, then repeat doubtful measurements.

    Raises Skip without peers, and Failed if this host cannot dial at all (no file descriptors left).
    """
    if not ctx.peers:
        raise Skip("the run has no other node")
    dialled = [Dialled(ctx, peer) for peer in ctx.peers]
    met_elsewhere = [dial for dial, peer in zip(dialled, ctx.peers, strict=True) if _came_from_elsewhere(peer)]
    _in_daemon_threads([*(dial.meet for dial in dialled), *(dial.try_met_at for dial in met_elsewhere)])
    measurements = [[ShortMeasurement(ctx, peer, way) for way in peer.others] for peer in ctx.peers]
    elsewhere = [measurement for row in measurements for measurement in row]
    _in_daemon_threads([measurement.meet for measurement in elsewhere])
    sample_s = min(path_quality.SAMPLE_S, path_quality.TRANSFERS_S / path_quality.SAMPLES / len(dialled))
    for dial in dialled:
        dial.measure(path_quality.SAMPLES, sample_s)
    until = min(ctx.clock() + path_quality.OTHER_SAMPLES_S, ctx.deadline - 1.0)  # shared by all samples
    for measurement in elsewhere:
        measurement.sample(min(path_quality.SAMPLE_S, path_quality.OTHER_SAMPLES_S / len(elsewhere)), until)
    _in_daemon_threads([dial.again for dial in dialled if dial.lost_packets])
    # Repeat peers that were slow compared with others of this row or with other networks, which may be chance.
    rates = [min(measurement.rate, path_quality.JUDGED_BYTES_PER_S) for measurement in elsewhere]
    best = max([*(dial.rate or 0.0 for dial in dialled), *rates], default=0.0)
    for dial in dialled:
        if (dial.rate or best) * path_quality.DOUBTFUL_RATIO < best and not dial.lost_packets:
            dial.measure(path_quality.SAMPLES, 2 * sample_s)
    peers = tuple(
        dial.result(tuple(measurement.result() for measurement in row))
        for dial, row in zip(dialled, measurements, strict=True)
    )
    if all(peer.outcome == "failed" for peer in peers):
        raise Failed(f"cannot connect to any other node: {wording.system_words(peers[0].error)}")
    return ConnectivityFact(peers=peers, port_range=port_range(ctx))


def _came_from_elsewhere(peer: Peer) -> bool:
    try:
        return plain_address(peer.met_at) != plain_address(peer.address)
    except ValueError:
        return False


def _in_daemon_threads(calls: Iterable[Callable[[], None]]) -> None:
    """Run the calls in daemon threads and wait for them; the end of this process does not wait for them."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Measurement(ABC):
    """The connection to a peer at one of its addresses, while it is open, and its measurements."""

    def __init__(self, ctx: NodesContext, peer: Peer, address: str) -> None:
        self._ctx = ctx
        self._peer = peer
        self._address = address
        self._line: Line | None = None
        self._found: dict[str, Any] = {"outcome": "failed", "error": "not dialled"}

    def meet(self) -> None:
        """Connect, make round trips, and send a burst larger than any packet."""
        started = self._ctx.clock()
        try:
            self._line = self._dial(self._address)
        except OSError as error:
            self._found = {"outcome": outcome(error), "errno": error.errno, "error": str(error)}
            return
        self._found = {"outcome": "ok", "connect_s": self._ctx.clock() - started}
        try:
            self._talk(self._line)
        except OSError as error:  # the connection was open before it broke
            self._found |= {"outcome": "broken", "errno": error.errno, "error": str(error)}
            self._hang_up()

    @abstractmethod
    def _dial(self, address: str) -> Line:
        """Connect to the address. Raises OSError of the last attempt if none was answered."""

    @abstractmethod
    def _talk(self, line: Line) -> None:
        """Make round trips and send the burst. Raises OSError."""

    def _hang_up(self) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.close()
            self._line = None


class Dialled(_Measurement):
    """The measurements of one peer. Its methods run one after the other, except ``try_met_at``, and never raise."""

    def __init__(self, ctx: NodesContext, peer: Peer) -> None:
        super().__init__(ctx, peer, peer.address)
        self._until = ctx.deadline - 1.0
        self._times: list[float] = []
        self._rates: list[float] = []
        self._met_at: Outcome | None = None

    def try_met_at(self) -> None:
        """Connect to the address that the peer used for the node check-in."""
        try:
            self._dial(self._peer.met_at).close()
            self._met_at = "ok"
        except OSError as error:
            self._met_at = outcome(error)

    def measure(self, samples: int, sample_s: float) -> None:
        """Take throughput samples; a transfer that does not end counts as the most that it can have moved.

        Takes fewer samples if they last much longer than intended, because rates vary widely on busy hosts.
        """
        patience = self._ctx.clock() + path_quality.PATIENCE * samples * sample_s
        patience = min(patience, self._ctx.deadline - 2 * path_quality.TRANSFER_S)
        for _ in range(samples):
            wanted = int((self._rates[-1] if self._rates else self.rate or 0.0) * sample_s)
            size = min(max(wanted, path_quality.SAMPLE_BYTES), path_quality.LARGEST_SAMPLE_BYTES)
            if self._line is None or self._ctx.clock() > patience:
                return
            try:
                self._rates.append(size / self._line.send(size, path_quality.TRANSFER_S))
            except OSError as error:
                if isinstance(error, TimeoutError):
                    self._rates.append(size / path_quality.TRANSFER_S)
                self._hang_up()

    def again(self) -> None:
        """Make more round trips for a path that lost a packet."""
        self._until = self._by(2 * path_quality.AGAIN_S)
        try:
            self.round_trips(path_quality.AGAIN_ROUND_TRIPS, path_quality.AGAIN_S)
        except OSError:
            self._hang_up()

    def round_trips(self, most: int, time_s: float) -> None:
        """Send small messages back and forth, and count what the kernel had to send again for them."""
        if self._line is None:
            return
        line, ends_at = self._line, self._ctx.clock() + time_s
        least = min(most, path_quality.LEAST_ROUND_TRIPS)
        before = line.tcp()
        try:
            for done in range(most):
                if done >= least and self._ctx.clock() > ends_at:
                    break
                self._times.append(line.round_trip(self._left(path_quality.ROUND_TRIP_S)))
        finally:
            after = line.tcp()
            if before is not None and after is not None:
                lost = after.retransmits - before.retransmits + (self._found.get("retransmits") or 0)
                self._found |= {"retransmits": lost, "mss_bytes": after.mss_bytes}

    @property
    def rate(self) -> float | None:
        """The best throughput in bytes per second; without samples, that of the burst."""
        burst_s = self._found.get("burst_s")
        return max(self._rates, default=path_quality.BURST_BYTES / burst_s if burst_s else None)

    @property
    def lost_packets(self) -> bool:
        """True if a small message was retransmitted by this host or, judging by its delay, by the peer."""
        stall_s = max(self._times) - min(self._times) if self._times else 0.0
        return bool(self._found.get("retransmits")) or stall_s > path_quality.RETRANSMIT_S

    def result(self, others: tuple[OtherConnectivity, ...] = ()) -> PeerConnectivity:
        """Close the connection and return all measurements, including ``others``."""
        self._hang_up()
        times = self._times
        return PeerConnectivity(
            **self._found,
            node=self._peer.node,
            hostname=self._peer.hostname,
            address=self._peer.address,
            port=self._peer.port,
            round_trips=len(times),
            round_trip_min_s=min(times, default=None),
            round_trip_median_s=median(times) if times else None,
            round_trip_max_s=max(times, default=None),
            throughput_bytes_per_s=tuple(self._rates),
            met_at=self._peer.met_at,
            met_at_outcome=self._met_at,
            others=others,
        )

    def _talk(self, line: Line) -> None:
        self._until = self._by(path_quality.MEETING_S)
        self.round_trips(path_quality.ROUND_TRIPS, path_quality.ROUND_TRIPS_S)
        self._found |= {"burst_bytes": path_quality.BURST_BYTES}
        try:
            self._found["burst_s"] = line.send(path_quality.BURST_BYTES, self._left(path_quality.BURST_S))
        except TimeoutError:
            self._hang_up()
            self._climb()

    def _climb(self) -> None:
        """Find the sizes that pass, on a new connection. The burst is repeated last: its loss may have been chance."""
        self._line = self._dial(self._peer.address)
        for size in (*path_quality.SIZES_BYTES, path_quality.BURST_BYTES):
            limit_s = path_quality.BURST_S if size == path_quality.BURST_BYTES else path_quality.SIZE_S
            try:
                self._found["burst_s"] = self._line.send(size, self._left(limit_s))
            except TimeoutError:
                passed = self._found.get("passed_bytes")
                self._found |= {"burst_s": None, "lost_bytes": size}
                self._found["outcome"] = "broken" if passed is None else "burst_lost"
                self._hang_up()
                return
            self._found["passed_bytes"] = size

    def _dial(self, address: str) -> Line:
        for _ in range(path_quality.DIALS - 1):
            try:
                return self._ctx.dial(address, self._peer.port, self._left(path_quality.DIAL_S))
            except OSError as error:
                if outcome(error) not in {"timed_out", "mute"}:
                    raise
        return self._ctx.dial(address, self._peer.port, self._left(path_quality.DIAL_S))

    def _by(self, limit_s: float) -> float:
        return min(self._ctx.clock() + limit_s, self._ctx.deadline - 1.0)

    def _left(self, limit_s: float) -> float:
        return max(min(limit_s, self._until - self._ctx.clock()), 0.05)


def outcome(error: OSError) -> Outcome:
    """Return the outcome of a failed connection attempt."""
    if isinstance(error, TimeoutError):
        return "timed_out"
    return _OUTCOMES.get(error.errno, "failed")


class ShortMeasurement(_Measurement):
    """A short measurement of one peer in one other network: ``meet``, ``sample``, ``result``, which never raise."""

    def __init__(self, ctx: NodesContext, peer: Peer, way: OtherWay) -> None:
        super().__init__(ctx, peer, way.address)
        self._way = way

    def sample(self, sample_s: float, until: float) -> None:
        """Take one throughput sample, unless the time is up."""
        left_s = until - self._ctx.clock()
        if self._line is None or left_s <= 0:
            return
        wanted = int(path_quality.BURST_BYTES / max(self._found["burst_s"], 1e-6) * sample_s)
        size = min(max(wanted, path_quality.SAMPLE_BYTES), path_quality.LARGEST_OTHER_SAMPLE_BYTES)
        with contextlib.suppress(OSError):  # busy or too slow: the burst is enough
            self._found["throughput_bytes_per_s"] = size / self._line.send(size, left_s)
            return
        self._hang_up()

    @property
    def rate(self) -> float:
        """The throughput, in bytes per second; 0 without a result."""
        return self._recorded().rate

    def result(self) -> OtherConnectivity:
        """Close the connection and return the measurements."""
        self._hang_up()
        return self._recorded()

    def _recorded(self) -> OtherConnectivity:
        return OtherConnectivity(**self._way.model_dump(), **self._found)

    def _dial(self, address: str) -> Line:
        for _ in range(path_quality.OTHER_DIALS - 1):
            with contextlib.suppress(TimeoutError):
                return self._ctx.dial(address, self._peer.port, path_quality.OTHER_DIAL_S)
        return self._ctx.dial(address, self._peer.port, path_quality.OTHER_DIAL_S)

    def _talk(self, line: Line) -> None:
        ends_at, times, before = self._ctx.clock() + path_quality.OTHER_ROUND_TRIPS_S, [], line.tcp()
        for _ in range(path_quality.OTHER_ROUND_TRIPS):
            times.append(line.round_trip(path_quality.OTHER_BURST_S))
            if self._ctx.clock() > ends_at:
                break
        after = line.tcp()
        self._found |= {"round_trips": len(times), "round_trip_min_s": min(times)}
        if before is not None and after is not None:
            self._found["retransmits"] = after.retransmits - before.retransmits
        self._found["burst_s"] = line.send(path_quality.BURST_BYTES, path_quality.OTHER_BURST_S)


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the round trip and the throughput of each path, as the dialing node measured it."""
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
