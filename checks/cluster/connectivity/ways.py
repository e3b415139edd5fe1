"""The other networks in which every node reaches every other, as they were measured: detours to recommend."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from statistics import median_low

from ddp_doctor.checks.cluster.connectivity import wording
from ddp_doctor.checks.cluster.connectivity.blame import Path
from ddp_doctor.checks.cluster.connectivity.matrix import Matrix
from ddp_doctor.facts.cluster import OtherConnectivity
from ddp_doctor.model.finding import Remedy, Reproducer
from ddp_doctor.model.recording import Recording

#: Ranks that do not come together at all.
MEET = Reproducer(kind="meet")
#: A tenth of a second at 100 Mbit/s, and more than any black hole lets through.
MOVE = Reproducer(kind="all_reduce", size_bytes=1024 * 1024)
#: Small enough to be paid in round trips.
ANSWER = Reproducer(kind="all_reduce", size_bytes=64 * 1024)


@dataclass
class Way:
    """One network; ``seen`` by path."""

    network: str
    interfaces: dict[int, str] = field(default_factory=dict)  # each node's own
    seen: dict[Path, OtherConnectivity] = field(default_factory=dict)

    def rate(self, paths: Collection[Path] = ()) -> float:
        """The median throughput over these paths, or all, in bytes per second."""
        return median_low([self.seen[path].rate for path in paths or self.seen])

    def answer_s(self, paths: Collection[Path] = ()) -> float:
        """The median over these paths, or all, of the shortest round trip."""
        return median_low([self.seen[path].round_trip_min_s or 0.0 for path in paths or self.seen])

    @property
    def loses_packets(self) -> bool:
        """Whether a small message had to be sent again, or nobody counted."""
        return any(one.retransmits is None or one.retransmits > 0 for one in self.seen.values())


def ways(recording: Recording) -> list[Way]:
    """Those in which all paths that were tested are well, the fastest first."""
    return recording.once("ways of reach", lambda: _ways(Matrix.of(recording)))


def detour(recording: Recording, fits: Callable[[Way], bool] = lambda _: True) -> tuple[Remedy, ...]:
    """The fastest of them that fits, as a remedy; none where there is none."""
    found = next(filter(fits, ways(recording)), None)
    return () if found is None else (take(recording, found),)


def way_out(recording: Recording) -> tuple[Remedy, ...]:
    """The fastest of them where the network in use carries nothing, for the rendezvous as well."""
    return tuple(take(recording, way, rendezvous=True) for way in ways(recording)[:1])


def take(recording: Recording, way: Way, *, rendezvous: bool = False) -> Remedy:
    """Let the backend use this way on all nodes."""
    why = f"there, in {way.network}, all nodes reach each other"
    return wording.use_interfaces(recording, dict(sorted(way.interfaces.items())), why, rendezvous=rendezvous)


def _ways(matrix: Matrix) -> list[Way]:
    found: dict[str, Way] = {}
    for path, peer in matrix.seen.items():
        for one in peer.others:
            way = found.setdefault(one.network, Way(one.network))
            way.interfaces |= {path[0]: one.interface, path[1]: one.peer_interface}
            way.seen[path] = one
    whole = [way for way in found.values() if _reaches_all(way, matrix)]
    return sorted(whole, key=lambda way: -way.rate())


def _reaches_all(way: Way, matrix: Matrix) -> bool:
    """Whether each path was tried there, and none failed."""
    return way.seen.keys() == matrix.seen.keys() and all(one.outcome == "ok" for one in way.seen.values())
