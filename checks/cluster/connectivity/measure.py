"""Dialling one peer and measuring the path to it, and a short look at a peer in another network."""

import contextlib
import errno
from statistics import median
from typing import Any

from ddp_doctor.facts.cluster import OtherConnectivity, Outcome, PeerConnectivity
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.context import Line, NodesContext, OtherWay, Peer

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


class _Measurement:
    """The line to a peer while there is one, and what was found on it."""

    def __init__(self, ctx: NodesContext, peer: Peer) -> None:
        self._ctx = ctx
        self._peer = peer
        self._line: Line | None = None
        self._found: dict[str, Any] = {"outcome": "failed", "error": "not dialled"}

    def _hang_up(self) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.close()
            self._line = None


class Dialled(_Measurement):
    """One peer; its methods are called one after the other, but for ``try_met_at``. They never raise."""

    def __init__(self, ctx: NodesContext, peer: Peer) -> None:
        super().__init__(ctx, peer)
        self._until = ctx.deadline - 1.0
        self._times: list[float] = []
        self._rates: list[float] = []
        self._met_at: Outcome | None = None

    def meet(self) -> None:
        """Connect, make round trips, send a burst larger than any packet."""
        try:
            started = self._ctx.clock()
            self._line = self._dial(self._peer.address)
            self._found = {"outcome": "ok", "connect_s": self._ctx.clock() - started}
            self._until = self._by(path_quality.MEETING_S)
        except OSError as error:
            self._found = {"outcome": outcome(error), "errno": error.errno, "error": str(error)}
            return
        try:
            self.round_trips(path_quality.ROUND_TRIPS, path_quality.ROUND_TRIPS_S)
            self._burst()
        except OSError as error:  # the connection stood, and then did not go on
            self._found |= {"outcome": "broken", "errno": error.errno, "error": str(error)}
            self._hang_up()

    def try_met_at(self) -> None:
        """Connect to the address from which the peer came to the roll call."""
        try:
            self._dial(self._peer.met_at).close()
            self._met_at = "ok"
        except OSError as error:
            self._met_at = outcome(error)

    def measure(self, samples: int, sample_s: float) -> None:
        """Take throughput samples; a transfer that does not end counts as what it moved at most.

        Fewer samples where they last much longer than they should: on busy hosts rates jump.
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
        """More round trips for a path that lost a packet."""
        self._until = self._by(2 * path_quality.AGAIN_S)
        try:
            self.round_trips(path_quality.AGAIN_ROUND_TRIPS, path_quality.AGAIN_S)
        except OSError:
            self._hang_up()

    def round_trips(self, most: int, time_s: float) -> None:
        """Small messages there and back, and what the kernel had to send again for them."""
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
        """The best throughput so far, of the burst where there is no sample, in bytes per second."""
        burst_s = self._found.get("burst_s")
        return max(self._rates, default=path_quality.BURST_BYTES / burst_s if burst_s else None)

    @property
    def lost_packets(self) -> bool:
        """Whether a small message had to be sent again, here or, as its time tells, over there."""
        stall_s = max(self._times) - min(self._times) if self._times else 0.0
        return bool(self._found.get("retransmits")) or stall_s > path_quality.RETRANSMIT_S

    def result(self, others: tuple[OtherConnectivity, ...] = ()) -> PeerConnectivity:
        """All that was found, there and in ``others``; the line is closed."""
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

    def _burst(self) -> None:
        assert self._line is not None
        self._found |= {"burst_bytes": path_quality.BURST_BYTES}
        try:
            self._found["burst_s"] = self._line.send(path_quality.BURST_BYTES, self._left(path_quality.BURST_S))
        except TimeoutError:
            self._hang_up()
            self._climb()

    def _climb(self) -> None:
        """On a new connection: which sizes pass? The burst repeats at the end: it may have been chance."""
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
        """Raises OSError: of the last dial where none was answered."""
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
    """What the failure to connect shows."""
    if isinstance(error, TimeoutError):
        return "timed_out"
    return _OUTCOMES.get(error.errno, "failed")


class ShortMeasurement(_Measurement):
    """One peer in one other network; ``meet``, then ``sample``, then ``result``. They never raise."""

    def __init__(self, ctx: NodesContext, peer: Peer, way: OtherWay) -> None:
        super().__init__(ctx, peer)
        self._way = way

    def meet(self) -> None:
        """Connect, make a few round trips, send a burst larger than any packet."""
        started = self._ctx.clock()
        try:
            self._line = self._dial()
        except OSError as error:
            self._found = {"outcome": outcome(error), "error": str(error)}
            return
        self._found = {"outcome": "ok", "connect_s": self._ctx.clock() - started}
        try:
            self._round_trips(self._line)
            self._found["burst_s"] = self._line.send(path_quality.BURST_BYTES, path_quality.OTHER_BURST_S)
        except OSError as error:
            self._found |= {"outcome": "broken", "error": str(error)}
            self._hang_up()

    def sample(self, sample_s: float, until: float) -> None:
        """One throughput sample, unless the time is up."""
        left_s = until - self._ctx.clock()
        if self._line is None or left_s <= 0:
            return
        wanted = int(path_quality.BURST_BYTES / max(self._found["burst_s"], 1e-6) * sample_s)
        size = min(max(wanted, path_quality.SAMPLE_BYTES), path_quality.LARGEST_OTHER_SAMPLE_BYTES)
        with contextlib.suppress(OSError):  # busy, or too slow: the burst shows enough
            self._found["throughput_bytes_per_s"] = size / self._line.send(size, left_s)
            return
        self._hang_up()

    @property
    def rate(self) -> float:
        """The throughput, in bytes per second; 0 where nothing came of it."""
        return self._recorded().rate

    def result(self) -> OtherConnectivity:
        """All that was found; the line is closed."""
        self._hang_up()
        return self._recorded()

    def _recorded(self) -> OtherConnectivity:
        return OtherConnectivity(**self._way.model_dump(), **self._found)

    def _dial(self) -> Line:
        """Raises OSError: of the last dial where none was answered."""
        for _ in range(path_quality.OTHER_DIALS - 1):
            with contextlib.suppress(TimeoutError):
                return self._ctx.dial(self._way.address, self._peer.port, path_quality.OTHER_DIAL_S)
        return self._ctx.dial(self._way.address, self._peer.port, path_quality.OTHER_DIAL_S)

    def _round_trips(self, line: Line) -> None:
        ends_at, times, before = self._ctx.clock() + path_quality.OTHER_ROUND_TRIPS_S, [], line.tcp()
        for _ in range(path_quality.OTHER_ROUND_TRIPS):
            times.append(line.round_trip(path_quality.OTHER_BURST_S))
            if self._ctx.clock() > ends_at:
                break
        after = line.tcp()
        self._found |= {"round_trips": len(times), "round_trip_min_s": min(times)}
        if before is not None and after is not None:
            self._found["retransmits"] = after.retransmits - before.retransmits
