"""Find the cause when nodes stop responding: a pure function of what each observer still received.

Missing heartbeats over the control store show only that two nodes do not receive each other's messages. A node is named
only on evidence from that node (its kernel answers, its own link is down), on evidence from two independent observers,
or if it is cut off from all other nodes. If one node is silent to another and nothing more is known, the pair is named.
A report of another node that reached the recording shows that the two still receive each other's messages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Literal

from ddp_doctor.facts.cluster import ConnectivityFact, SilenceFact
from ddp_doctor.knowledge.deadlines import SILENT_S
from ddp_doctor.knowledge.network.addresses import is_own_bridge
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording

How = Literal[
    "stopped",  # the blamed node was itself stopped for so long that the others gave it up
    "link-down",  # the blamed node's own interface lost its link
    "cut-off",  # the blamed node cannot reach any of several others
    "frozen",  # its kernel accepts connections, but its agent does not answer
    "gone",  # its kernel refuses connections: the agent has exited
    "store",  # the head agent answers several others, its control store does not
    "dark",  # the node does not answer, and several observers agree
    "one-sided",  # the node does not answer, and the faulty end is unknown: the pair
    "path",  # another node still reaches it: the path between the observer and the node
    "beats",  # it answers the observer directly, only its heartbeats over the store stopped: a path, or a pause
]

_NO_ANSWER = ("timed_out", "unreachable")
#: How long another follower must have missed the head to count: half the time after which it would report it itself,
#: and well above the gaps of healthy nodes (knowledge/deadlines.py).
_HEARD_TOO_LONG_AGO_S = SILENT_S / 2


@dataclass(frozen=True)
class Cause:
    """Nodes that stopped responding for one reason, with the evidence. ``pairs`` are (observer, silent node)."""

    how: How
    silent: tuple[int, ...]
    blamed: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    seen: tuple[FactAt[SilenceFact], ...] = ()

    @property
    def observers(self) -> tuple[int, ...]:
        """The nodes that do not receive anything from the silent nodes."""
        return _observers(
            silence for silence in self.seen if silence.fact.answer != "answers" or silence.fact.heartbeat
        )


def silent_nodes(recording: Recording) -> frozenset[int]:
    """Return the node ranks that stopped responding, left early or are cut off: other nodes' ranks wait for theirs."""
    left = {farewell.fact.node for farewell in farewells(recording)}
    lost = {node for cause in causes(recording) for node in (*cause.silent, *cause.blamed)}
    return frozenset(left | lost)


def farewells(recording: Recording) -> list[FactAt[SilenceFact]]:
    """Return the nodes that left before the end and gave a reason."""
    return [silence for silence in recording.facts(SilenceFact) if silence.fact.said_goodbye]


def links_lost(recording: Recording, silence: FactAt[SilenceFact]) -> tuple[str, ...]:
    """Return the observer's interfaces to other hosts that lost their link: a container's veth has no address."""
    nodes = recording.world.nodes if recording.world else ()
    known = next((node.addresses for node in nodes if node.node_rank == silence.node), {})
    lost = tuple(name for name in silence.fact.links_down if name != "lo" and not is_own_bridge(name))
    if not known:
        return lost
    return tuple(name for name in lost if any(map(leads_out, known.get(name, ()))))


def leads_out(address: str) -> bool:
    """Return True if other hosts can reach this address: it is neither loopback nor link-local."""
    try:
        ip = ip_address(address.partition("/")[0].partition("%")[0])
    except ValueError:
        return False
    return not (ip.is_loopback or ip.is_link_local)


# --- from observations to causes ------------------------------------------------------------------


@once_a_recording
def causes(recording: Recording) -> list[Cause]:
    """Return why nodes stopped responding, one entry per cause."""
    left = {farewell.fact.node for farewell in farewells(recording)}
    # The direct connection of these pairs did not work at the start, so their silence is not new evidence.
    blocked = {
        (node.node, peer.node)
        for node in recording.facts(ConnectivityFact)
        for peer in node.fact.peers
        if (peer.met_at_outcome or peer.outcome) != "ok"
    }
    counted = []
    for silence in recording.facts(SilenceFact):
        fact = silence.fact
        if (silence.node, fact.node) in blocked and fact.answer != "answers":
            fact = fact.model_copy(update={"answer": "not_asked"})
        # An observer that only reports how long it has not heard the head may have heard it just before.
        if fact.node not in left and (fact.answer != "not_asked" or fact.silent_s >= _HEARD_TOO_LONG_AGO_S):
            counted.append(replace(silence, fact=fact))
    if counted and all(silence.fact.stopped_s >= SILENT_S for silence in counted):  # so long that the others gave it up
        return [Cause("stopped", _silent(counted), _observers(counted), seen=tuple(counted))]
    alone = _lone_observer(recording, counted)
    if alone is not None:
        return [alone]
    of_node = grouped((silence.fact.node, silence) for silence in counted)
    each = [_cause_of(recording, node, silences) for node, silences in of_node.items()]
    return _merged(_without_outvoted([cause for cause in each if cause is not None]))


def _lone_observer(recording: Recording, silences: Sequence[FactAt[SilenceFact]]) -> Cause | None:
    """Return a cause if the only observer lost its own link or no longer reaches several other nodes."""
    observers = _observers(silences)
    if len(observers) != 1 or any(silence.fact.answer not in (*_NO_ANSWER, "not_asked") for silence in silences):
        return None
    silent = _silent(silences)
    if any(links_lost(recording, silence) for silence in silences):
        return Cause("link-down", silent, observers, seen=tuple(silences))
    others = recording.world.nnodes - 1 if recording.world else len(silent)
    if len(silent) >= max(others, 2):
        return Cause("cut-off", silent, observers, seen=tuple(silences))
    return None


def _cause_of(recording: Recording, node: int, silences: Sequence[FactAt[SilenceFact]]) -> Cause | None:
    """Return why one node is silent to these observers, or None if the node is not the cause."""

    def by(answer: str) -> tuple[int, ...]:
        return _observers(silence for silence in silences if silence.fact.answer == answer)

    dark = [silence for silence in silences if silence.fact.answer in _NO_ANSWER]
    excused = _observers(silence for silence in dark if links_lost(recording, silence))  # their own link is down
    deaf = _observers(silence for silence in dark if not links_lost(recording, silence))
    missed = _observers(silence for silence in silences if silence.fact.heartbeat)
    if not missed and not deaf:
        return None  # it was only queried as well: it ended because the head was lost
    whole = Cause("dark", (node,), (node,), seen=tuple(silences))
    gone, frozen = by("refused"), by("silent")
    if by("answers"):
        if broken := (*deaf, *frozen, *gone):
            return _pairs(whole, "path", broken)
    elif gone or frozen:
        return replace(whole, how="gone" if gone else "frozen")
    elif sound := (*deaf, *by("not_asked")):
        return whole if len(sound) > 1 else _pairs(whole, "one-sided", sound)
    if excused:
        return replace(whole, how="link-down", blamed=excused)
    return replace(whole, how="store") if len(missed) > 1 else _pairs(whole, "beats", missed)


def _pairs(whole: Cause, how: How, observers: Sequence[int]) -> Cause:
    pairs = tuple((observer, node) for observer in dict.fromkeys(observers) for node in whole.silent)
    return replace(whole, how=how, blamed=(), pairs=pairs)


def _without_outvoted(each: Sequence[Cause]) -> list[Cause]:
    """Drop dark nodes unless they are fewer than their observers: they may be the other half of a split network."""
    unheard = [cause for cause in each if cause.how in ("dark", "one-sided")]
    silent = {node for cause in unheard for node in cause.silent}
    observers = {observer for cause in unheard for observer in cause.observers}
    if len(silent) < len(observers):
        return list(each)
    return [_pairs(cause, "one-sided", cause.observers) if cause.how == "dark" else cause for cause in each]


def _merged(each: Sequence[Cause]) -> list[Cause]:
    """Return one cause for all nodes that stopped responding in the same way; a lost link belongs to its own node."""
    groups = grouped(((cause.how, cause.blamed if cause.how == "link-down" else ()), cause) for cause in each)
    return [
        Cause(
            how,
            silent=tuple(node for cause in alike for node in cause.silent),
            blamed=tuple(dict.fromkeys(node for cause in alike for node in cause.blamed)),
            pairs=tuple(pair for cause in alike for pair in cause.pairs),
            seen=tuple(silence for cause in alike for silence in cause.seen),
        )
        for (how, _), alike in groups.items()
    ]


def _observers(silences: Iterable[FactAt[SilenceFact]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(silence.node for silence in silences))


def _silent(silences: Iterable[FactAt[SilenceFact]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(silence.fact.node for silence in silences))
