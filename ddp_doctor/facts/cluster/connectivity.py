"""What one node saw of the peers that it dialled."""

from typing import ClassVar, Literal

from ddp_doctor.knowledge.network.path_quality import BURST_BYTES
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: ``denied``: by the dialling host itself. ``mute``: connected, and no answer ever came. ``foreign``: another
#: program answered. ``broken``: answered, and then no more. ``burst_lost``: small messages arrive, larger ones
#: never do. ``failed``: anything else, mostly of the dialling host, see ``error``.
Outcome = Literal[
    "ok",
    "refused",
    "timed_out",
    "unreachable",
    "denied",
    "mute",
    "foreign",
    "broken",
    "burst_lost",
    "failed",
]


class OtherConnectivity(Frozen):
    """The same peer in another network, in which all nodes have an address: looked at briefly."""

    network: str  # "10.78.0.0/24"
    interface: str  # this node's own there
    peer_interface: str
    address: str  # the peer's
    outcome: Outcome
    error: str | None = None
    connect_s: float | None = None
    round_trips: int = 0
    round_trip_min_s: float | None = None
    retransmits: int | None = None  # during the round trips
    burst_s: float | None = None  # of as many bytes as on the main address
    throughput_bytes_per_s: float | None = None  # one sample

    @property
    def rate(self) -> float:
        """The sample, else what the burst tells, in bytes per second; 0 where there was none."""
        burst = BURST_BYTES / self.burst_s if self.burst_s else 0.0
        return self.throughput_bytes_per_s or burst


class PeerConnectivity(Frozen):
    """One peer as it was dialled from here; None is "did not get that far", or not known to the kernel."""

    node: int
    hostname: str = ""
    address: str  # that the backend would advertise
    port: int
    outcome: Outcome
    errno: int | None = None
    error: str | None = None
    connect_s: float | None = None  # until the peer had recognised us
    round_trips: int = 0
    round_trip_min_s: float | None = None
    round_trip_median_s: float | None = None
    round_trip_max_s: float | None = None
    retransmits: int | None = None  # during the round trips, each of one small packet
    mss_bytes: int | None = None
    burst_bytes: int = 0
    burst_s: float | None = None
    passed_bytes: int | None = None  # the largest message that arrived, where a burst was lost
    lost_bytes: int | None = None  # and the smallest that never did
    throughput_bytes_per_s: tuple[float, ...] = ()  # samples in the order they were taken
    met_at: str = ""  # the address from which it came to the roll call
    met_at_outcome: Outcome | None = None  # only where that is another one
    others: tuple[OtherConnectivity, ...] = ()


class ConnectivityFact(Fact):
    """One node's row of the matrix: what it saw of each peer it dialled."""

    KIND: ClassVar[str] = "connectivity/1"

    peers: tuple[PeerConnectivity, ...]
    port_range: tuple[int, int] | None = None  # first and last ephemeral TCP port of this node
