"""A short look at a peer in another network than the one that the backend takes."""

import contextlib
from typing import Any

from ddp_doctor.checks.cluster.connectivity.measure import outcome
from ddp_doctor.facts.cluster import OtherConnectivity
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.context import Line, NodesContext, OtherWay, Peer


class Glance:
    """One peer in one other network; ``meet``, then ``sample``, then ``result``. They never raise."""

    def __init__(self, ctx: NodesContext, peer: Peer, way: OtherWay) -> None:
        self._ctx = ctx
        self._peer = peer
        self._way = way
        self._line: Line | None = None
        self._found: dict[str, Any] = {"outcome": "failed", "error": "not dialled"}

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
        with contextlib.suppress(OSError):  # busy, or too slow: the burst tells enough
            self._found["throughput_bytes_per_s"] = size / self._line.send(size, left_s)
            return
        self._hang_up()

    @property
    def rate(self) -> float:
        """The throughput, in bytes per second; 0 where nothing came of it."""
        return self._seen().rate

    def result(self) -> OtherConnectivity:
        """All that was found; the line is closed."""
        self._hang_up()
        return self._seen()

    def _seen(self) -> OtherConnectivity:
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

    def _hang_up(self) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.close()
            self._line = None
