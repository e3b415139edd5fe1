"""Who has come to the head's roll call, and when it is over: all are here, or it is known why not."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ddp_doctor.agents import validation
from ddp_doctor.agents.framing import Unreadable
from ddp_doctor.agents.messages import NodeReport
from ddp_doctor.agents.store_client import HEAD, StoreClient, StoreLost
from ddp_doctor.facts.roll_call import NotStarted, Outcome
from ddp_doctor.knowledge.deadlines import SILENT_S
from ddp_doctor.starters.place import Place

#: Two agents with one node rank are both heard for this long before it is said.
_RIVALS_S = 1.5
#: Nodes that expect different numbers of nodes wait this long for the others; longer where none is usual yet.
_DISAGREE_S = 3.0
_TIE_S = 6.0
#: Arrivals that are watched for beyond the nodes that are not here: agents that are ended and started anew.
_AGENTS_BEYOND = 4


@dataclass
class Arrivals:
    """The agents that reported in, by their ids, the head among them."""

    client: StoreClient
    place: Place
    until: float  # monotonic
    not_started: Callable[[], tuple[NotStarted, ...]]
    node_reports: dict[int, NodeReport]
    unreadable: tuple[str, ...] = ()  # the names in node reports that cannot be read, as far as they hold one
    _watched: list[int] = field(default_factory=list)  # ids under which somebody may come
    _seen: set[int] = field(default_factory=set)
    _agreed_at: float = field(default_factory=time.monotonic)
    _rivals_since: float = field(default_factory=time.monotonic)

    def unreadable_names(self) -> tuple[str, ...]:
        """Each name once, and not too many."""
        return tuple(dict.fromkeys(self.unreadable))[:8]

    def admit(self) -> None:
        """Take in those who have come, and take out those who are gone again; waits a moment for news."""
        client = self.client
        absent = max(self.place.nnodes - len(self.node_reports), 0)
        while len(self._watched) < len(self._seen) + absent + _AGENTS_BEYOND:
            self._watched.append(len(self._watched) + 1)
            client.watch(f"join/{self._watched[-1]}")
        new = [one for one in self._watched if one not in self._seen]
        client.wait(lambda: any(client.value(f"join/{one}") is not None for one in new), 0.2)
        if client.error is not None:
            raise StoreLost(client.error)
        for one in new:
            said = client.value(f"join/{one}")
            if said is not None and not self._is_full():
                self._seen.add(one)
                try:
                    self.node_reports[one] = validation.node_report(said)
                except Unreadable:
                    self.unreadable += (validation.sender(said),)
                client.follow(sorted(self._seen))
        for one in [
            one for one in self.node_reports if one != HEAD and (self._is_gone(one) or self._ended(one))
        ]:
            del self.node_reports[one]

    def _is_full(self) -> bool:
        """Whether there is no room, by any node's count: who comes later than enough waits for one to go."""
        return len(self.node_reports) >= max(node_report.nnodes for node_report in self.node_reports.values())

    def _is_gone(self, one: int) -> bool:
        """An agent that was ended while the others still came; it may have been started anew."""
        beat = self.client.beats.get(one)
        return bool(beat and beat.fields.get("leaving")) or self.client.silent_s(one) > SILENT_S

    def _ended(self, one: int) -> bool:
        """An agent that had come, and that the starter then saw end."""
        rank, hosts = self.node_reports[one].claimed_rank, self.place.expected_hosts
        return (
            rank is not None
            and rank < len(hosts)
            and hosts[rank] in {gone.hostname for gone in self.not_started()}
        )

    def outcome(self) -> Outcome | None:
        """How the roll call ended; None while it goes on."""
        if len({node_report.nnodes for node_report in self.node_reports.values()}) > 1:
            return "disagree" if self._have_disagreed() else None
        self._agreed_at = time.monotonic()
        if self._claimed_twice():
            return "duplicate"
        claims = [
            node_report.claimed_rank
            for node_report in self.node_reports.values()
            if node_report.claimed_rank is not None
        ]
        if len(self.node_reports) == self.place.nnodes and len(claims) == len(set(claims)):
            return "met"
        failed = len(self.not_started())
        living = len([one for one in self.node_reports if not self._ended(one)])
        is_hopeless = failed > 0 and living + failed >= self.place.nnodes
        if not is_hopeless and time.monotonic() < self.until:
            return None
        return "missing" if len(claims) == len(set(claims)) else "duplicate"

    def _have_disagreed(self) -> bool:
        """Whether all have been heard on the number of nodes: then it shows who is alone in it."""
        told = Counter(node_report.nnodes for node_report in self.node_reports.values())
        if len(self.node_reports) >= max(told):
            return True
        (_, most), (_, next_most) = told.most_common(2)
        patience_s = _DISAGREE_S if most > next_most else _TIE_S
        return time.monotonic() - self._agreed_at > patience_s

    def _claimed_twice(self) -> bool:
        """Whether two agents that both live claim one rank: one of them might be a dead one's successor."""
        by_rank: dict[int, list[int]] = {}
        for one, node_report in self.node_reports.items():
            if node_report.claimed_rank is not None:
                by_rank.setdefault(node_report.claimed_rank, []).append(one)
        rivals = [one for ids in by_rank.values() if len(ids) > 1 for one in ids]
        if not rivals:
            self._rivals_since = time.monotonic()
            return False
        living = all(one == HEAD or self.client.silent_s(one) < 1.0 for one in rivals)
        return living and time.monotonic() - self._rivals_since > _RIVALS_S
