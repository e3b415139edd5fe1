"""The rows of all nodes as one matrix of paths, and the causes of bad paths. Nodes without a row are unknown."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from ddp_doctor.facts.cluster import ConnectivityFact, Outcome, PeerConnectivity
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.knowledge.network.addresses import is_loopback
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.path_blame import Blame, Path, blame, both_ways

#: The peer was not reached.
BLOCKED: tuple[Outcome, ...] = ("refused", "timed_out", "unreachable", "denied", "mute", "foreign")
#: The peer answered, even if the connection failed later.
CONNECTED: tuple[Outcome, ...] = ("ok", "burst_lost", "broken")
#: Maximum number of paths to show individually.
PATHS_SHOWN = 3


@dataclass(frozen=True)
class Loss:
    """The retransmitted small packets between two nodes, in both directions together."""

    retransmits: int
    round_trips: int
    median_s: float

    @property
    def share(self) -> float:
        """The losses per round trip."""
        return self.retransmits / self.round_trips

    @property
    def is_bad(self) -> bool:
        """True if the losses are more than chance."""
        return self.retransmits >= path_quality.LOST_PACKETS and self.share >= path_quality.LOST_SHARE


class Matrix:
    """The measurements of all nodes about each other."""

    @classmethod
    def of(cls, recording: Recording) -> "Matrix":
        """Return the matrix of a recording."""
        return recording.once(cls, lambda: cls(recording))

    def __init__(self, recording: Recording) -> None:
        rows = recording.facts(ConnectivityFact)
        # a node without any reading stopped responding, which another finding reports
        alive = {reading.node for reading in recording.of_check("connectivity")}
        self.rows = {row.node: row.fact for row in rows}
        self.seen: dict[Path, PeerConnectivity] = {
            (row.node, peer.node): peer
            for row in rows
            for peer in row.fact.peers
            if peer.outcome in CONNECTED or peer.node in alive
        }

    def of_pair(self, path: Path) -> Iterator[PeerConnectivity]:
        """Yield the measurements of both ends."""
        yield from (self.seen[direction] for direction in (path, path[::-1]) if direction in self.seen)

    @cached_property
    def pairs(self) -> set[Path]:
        """The pairs that were tested, each once."""
        return {(min(path), max(path)) for path in self.seen}

    @cached_property
    def nodes(self) -> list[int]:
        """The nodes that dialed or were dialed."""
        return sorted({node for path in self.seen for node in path})

    @cached_property
    def address_of(self) -> dict[int, str]:
        """The address of each dialed node, from the node check-in if known."""
        return {path[1]: peer.met_at or peer.address for path, peer in self.seen.items()}

    def addresses(self, nodes: Iterable[int]) -> list[str]:
        """Return the known addresses of these nodes."""
        known = self.address_of
        return [known[node] for node in sorted(set(nodes)) if node in known]

    @cached_property
    def failed(self) -> list[Path]:
        """The paths without a connection on any address."""
        return [path for path, peer in self.seen.items() if _is_blocked(peer) and not _loopback_fails(peer)]

    @cached_property
    def misled_paths(self) -> list[Path]:
        """The paths that exist only on the address of the node check-in."""
        return [path for path, peer in self.seen.items() if misled(peer) and not _loopback_fails(peer)]

    @cached_property
    def blocked(self) -> Blame:
        """The cause of paths that are blocked on all addresses."""
        return self._judge(_is_blocked, connected)

    @cached_property
    def misled(self) -> Blame:
        """The cause of paths with a working check-in address whose advertised address fails."""
        return self._judge(misled, connected)

    @cached_property
    def swallowed(self) -> Blame:
        """The cause of paths that deliver small messages but drop large ones."""
        return self._judge(lambda peer: peer.outcome == "burst_lost", lambda peer: peer.outcome == "ok")

    @cached_property
    def losses(self) -> dict[Path, Loss]:
        """The losses between the nodes of each pair, if the kernel counts them."""
        found = {}
        for pair in self.pairs:
            ends = [peer for peer in self.of_pair(pair) if peer.retransmits is not None and peer.round_trips]
            if ends:
                lost = sum(peer.retransmits or 0 for peer in ends)
                typical = min(peer.round_trip_median_s or 0.0 for peer in ends)
                found[pair] = Loss(lost, sum(peer.round_trips for peer in ends), typical)
        return found

    @cached_property
    def lossy(self) -> Blame:
        """The cause of lossy paths; a pair with few round trips or few losses is neither good nor bad."""
        losses = self.losses
        bad = {pair for pair, loss in losses.items() if loss.is_bad}
        good = {
            pair
            for pair, loss in losses.items()
            if not loss.retransmits and loss.round_trips >= path_quality.LOSSLESS_ROUND_TRIPS
        }
        return blame(both_ways(bad), both_ways(good))

    @cached_property
    def answers(self) -> dict[Path, float]:
        """The shortest round trip of each pair, in seconds."""
        found = {}
        for pair in self.pairs:
            times = [peer.round_trip_min_s for peer in self.of_pair(pair) if peer.round_trip_min_s is not None]
            if times:
                found[pair] = min(times)
        return found

    @cached_property
    def slow_to_answer(self) -> Blame:
        """The cause of paths with much longer round trips than the fastest quarter of the paths."""
        answers = self.answers
        if not answers:
            return Blame()
        usual = usual_answer(answers)
        slow = {pair for pair, answer_s in answers.items() if is_slow_answer(answer_s, usual)}
        return blame(both_ways(slow), both_ways(answers.keys() - slow))

    @cached_property
    def best_rates(self) -> dict[Path, float]:
        """The best throughput of each path, in bytes per second, because chance only reduces it."""
        return {path: max(rates) for path, rates in self._samples()}

    @cached_property
    def usual_rate(self) -> float:
        """The median throughput that a quarter of the paths reaches; 0 without measurements."""
        return _upper_quartile([median(rates) for _, rates in self._samples()])

    @cached_property
    def sure_rate(self) -> float:
        """Like usual_rate, for the worst samples: on busy hosts, two samples of a path may differ by a factor of 50."""
        return _upper_quartile([min(rates) for _, rates in self._samples()])

    @cached_property
    def slow(self) -> Blame:
        """The cause of paths whose best sample is much slower than the worst ones of the fastest quarter."""
        slow = {path for path in self.best_rates if self.is_slow(path, path_quality.SLOW_NODE_RATIO)}
        return blame(slow, self.best_rates.keys() - slow)

    def is_slow(self, path: Path, ratio: float) -> bool:
        """Return True if a path is slower than others by this factor."""
        return self.best_rates[path] * ratio < min(self.sure_rate, path_quality.JUDGED_BYTES_PER_S)

    def _samples(self) -> Iterator[tuple[Path, tuple[float, ...]]]:
        peers = self.seen.items()
        return ((path, peer.throughput_bytes_per_s) for path, peer in peers if peer.throughput_bytes_per_s)

    def _judge(self, bad: Callable[[PeerConnectivity], bool], good: Callable[[PeerConnectivity], bool]) -> Blame:
        judged = {path: peer for path, peer in self.seen.items() if not _loopback_fails(peer)}
        return blame(
            {path for path, peer in judged.items() if bad(peer)},
            {path for path, peer in judged.items() if good(peer)},
            one_of_two=good is connected,
        )


def _is_blocked(peer: PeerConnectivity) -> bool:
    return peer.outcome in BLOCKED and not misled(peer)


def connected(peer: PeerConnectivity) -> bool:
    """Return True if the peer answered on the advertised address."""
    return peer.outcome in CONNECTED


def misled(peer: PeerConnectivity) -> bool:
    """Return True if only the check-in's address reaches the peer."""
    return peer.outcome not in CONNECTED and peer.met_at_outcome == "ok"


def usual_answer(answers: dict[Path, float]) -> float:
    """Return the round trip that a quarter of the pairs does not exceed."""
    return sorted(answers.values())[(len(answers) - 1) // 4]


def is_slow_answer(answer_s: float, usual_s: float) -> bool:
    """Return True if a round trip is much longer than usual, both absolutely and relatively."""
    return answer_s >= path_quality.SLOW_ANSWER_RATIO * usual_s and answer_s >= usual_s + path_quality.SLOW_ANSWER_S


def _upper_quartile(rates: list[float]) -> float:
    return sorted(rates, reverse=True)[(len(rates) - 1) // 4] if rates else 0.0


def _loopback_fails(peer: PeerConnectivity) -> bool:
    """Return True for a loopback address, which leads back to the dialing node and has its own finding."""
    return not connected(peer) and is_loopback(peer.address)
