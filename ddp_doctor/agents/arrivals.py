"""The nodes that have come to the head's check-in, and when it is over: all are present, or it is known why not."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddp_doctor.agents import messages
from ddp_doctor.agents.framing import Unreadable
from ddp_doctor.agents.messages import NodeReport
from ddp_doctor.agents.store_client import HEAD, StoreClient, StoreLost
from ddp_doctor.facts.cluster import AttemptOutcome, NotStarted
from ddp_doctor.knowledge.deadlines import SILENT_S
from ddp_doctor.model.base import grouped
from ddp_doctor.starters.place import Place

#: The beats of two agents with one node rank must come for this long before that counts as a duplicate. It is longer
#: while nodes are still expected, which would find the endpoint closed and not learn the reason.
_RIVALS_S = 1.5
_RIVALS_BEFORE_ALL_S = 6.0
#: Nodes that expect different numbers of nodes wait this long for the others; longer if no number is most common yet.
_DISAGREE_S = 3.0
_TIE_S = 6.0
#: Arrivals to watch for beyond the number of missing nodes: agents that were ended and restarted.
_AGENTS_BEYOND = 4


@dataclass
class Arrivals:
    """The agents that checked in, by their ids, including the head."""

    client: StoreClient
    place: Place
    until: float  # monotonic
    not_started: Callable[[], tuple[NotStarted, ...]]
    node_reports: dict[int, NodeReport]
    unreadable: tuple[str, ...] = ()  # the host names in unreadable node reports, "" if unknown
    _watched: list[int] = field(default_factory=list)  # ids of possible arrivals
    _seen: set[int] = field(default_factory=set)
    _agreed_at: float = field(default_factory=time.monotonic)
    _rivals_since: float = field(default_factory=time.monotonic)

    def admit(self) -> None:
        """Add the agents that have come, and remove agents that have left; waits a moment for news."""
        client = self.client
        absent = max(self.place.nnodes - len(self.node_reports), 0)
        while len(self._watched) < len(self._seen) + absent + _AGENTS_BEYOND:
            self._watched.append(len(self._watched) + 1)
            client.watch(f"join/{self._watched[-1]}")
        new = [agent for agent in self._watched if agent not in self._seen]
        client.wait(lambda: any(client.value(f"join/{agent}") is not None for agent in new), 0.2)
        if client.error is not None:
            raise StoreLost(client.error)
        for agent in new:
            value = client.value(f"join/{agent}")
            if value is not None and not self._is_full():
                self._seen.add(agent)
                try:
                    self.node_reports[agent] = messages.node_report(value)
                except Unreadable:
                    self.unreadable += (messages.sender(value),)
                client.follow(sorted(self._seen))
        for agent in [agent for agent in self.node_reports if agent != HEAD]:
            # It ended while others still came, and may have been restarted.
            beat = client.beats.get(agent)
            if (beat and beat.message.leaving) or client.silent_s(agent) > SILENT_S or self._has_ended(agent):
                del self.node_reports[agent]

    def _is_full(self) -> bool:
        """Return True if all nodes are present, by any node's count: another agent waits until one leaves."""
        return len(self.node_reports) >= max(node_report.nnodes for node_report in self.node_reports.values())

    def _has_ended(self, agent: int) -> bool:
        """Return True if the starter reported the end of an agent that had checked in."""
        rank, hosts = self.node_reports[agent].claimed_rank, self.place.expected_hosts
        return rank is not None and rank < len(hosts) and hosts[rank] in {gone.hostname for gone in self.not_started()}

    def outcome(self) -> AttemptOutcome | None:
        """Return the result of the check-in, or None while it is in progress."""
        if len({node_report.nnodes for node_report in self.node_reports.values()}) > 1:
            return "disagree" if self._have_disagreed() else None
        self._agreed_at = time.monotonic()
        by_rank = grouped((node_report.claimed_rank, agent) for agent, node_report in self.node_reports.items())
        rivals = [agent for rank, ids in by_rank.items() if rank is not None and len(ids) > 1 for agent in ids]
        if self._have_lived_on(rivals):
            return "duplicate"
        if len(self.node_reports) == self.place.nnodes and not rivals:
            return "met"
        failed = len(self.not_started())
        living = len([agent for agent in self.node_reports if not self._has_ended(agent)])
        is_hopeless = failed > 0 and living + failed >= self.place.nnodes
        if not is_hopeless and time.monotonic() < self.until:
            return None
        return "duplicate" if rivals else "missing"

    def _have_disagreed(self) -> bool:
        """Return True if enough nodes have stated their number of nodes to show which one differs."""
        stated = Counter(node_report.nnodes for node_report in self.node_reports.values())
        if len(self.node_reports) >= max(stated):
            return True
        (_, most), (_, next_most) = stated.most_common(2)
        patience_s = _DISAGREE_S if most > next_most else _TIE_S
        return time.monotonic() - self._agreed_at > patience_s

    def _have_lived_on(self, rivals: Sequence[int]) -> bool:
        """Return True if agents that claim one rank all stay alive: an agent may have replaced a dead one."""
        if not rivals:
            self._rivals_since = time.monotonic()
            return False
        living = all(agent == HEAD or self.client.silent_s(agent) < 1.0 for agent in rivals)
        patience_s = _RIVALS_S if self._is_full() else _RIVALS_BEFORE_ALL_S
        return living and time.monotonic() - self._rivals_since > patience_s
