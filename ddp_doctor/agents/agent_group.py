"""The agents of a run after the check-in: orders from the head, results to it, and which agents are alive.

All messages go through the control store, so one open port is enough. The head agent decides. The others follow its
orders, in the order of their numbers, and send their readings.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ddp_doctor.agents import messages
from ddp_doctor.agents.framing import RunIsOver, Unreadable
from ddp_doctor.agents.messages import Begin
from ddp_doctor.agents.store_client import HEAD, StoreClient, StoreLost
from ddp_doctor.knowledge.deadlines import FAREWELL_S, SILENT_S
from ddp_doctor.model.base import Json
from ddp_doctor.model.recording import World

T = TypeVar("T")


class Lost(RunIsOver):
    """The beats of other agents no longer come; ``nodes`` are their node ranks."""

    def __init__(self, nodes: Sequence[int]) -> None:
        super().__init__(f"node ranks {sorted(nodes)} are silent")
        self.nodes = tuple(sorted(nodes))


class Left(RunIsOver):
    """The early end of another agent: it was interrupted, or had an internal error."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


@dataclass
class AgentGroup:
    """The view of one agent on the others. ``begin`` is None if the node check-in was not completed."""

    client: StoreClient
    ids: dict[int, int] = field(default_factory=dict)  # node rank -> number at the check-in
    my_rank: int = 0
    begin: Begin | None = None
    ended: dict[str, Json] | None = None  # the head's last order, if it ended the check-in
    lost: set[int] = field(default_factory=set)  # node ranks that were silent, if only for a time
    unreadable: set[int] = field(default_factory=set)  # node ranks that sent unreadable values
    until: float = float("inf")  # monotonic; a head that only sends beats is lost then
    began_at: float = field(default_factory=time.monotonic)
    _orders: int = 0

    @property
    def is_head(self) -> bool:
        """True if this agent is the head."""
        return self.client.my_id == HEAD

    @property
    def others(self) -> tuple[int, ...]:
        """The node ranks of the other agents."""
        return tuple(rank for rank in self.ids if rank != self.my_rank)

    # --- orders and results ---------------------------------------------------------------------

    def order(self, order: dict[str, Json]) -> None:
        """Give all others the next order (head only)."""
        self._orders += 1
        self.client.put(f"order/{self._orders}", order)

    def next_order(self) -> dict[str, Json]:
        """Wait for the head's next order (followers only). Raises Lost when the head is silent, and Unreadable."""
        self._orders += 1
        key = f"order/{self._orders}"
        self.client.watch(key)
        self.wait(lambda: self.client.value(key) is not None)
        return messages.order(self.client.value(key))

    def hand_in(self, key: str, value: Json) -> None:
        """Send the head a result (followers only)."""
        self.client.put(f"{key}/{self.client.my_id}", value)

    def gather(
        self, key: str, timeout_s: float, read: Callable[[Json, int, World], T], of: Collection[int] | None = None
    ) -> dict[int, T]:
        """Return the results of the other nodes, or ``of`` some, that come in time while their beats come (head only).

        ``read`` converts the value that a node sent, its node rank and the world, or raises Unreadable.
        """
        keys = {rank: f"{key}/{self.ids[rank]}" for rank in self.others if of is None or rank in of}
        for name in keys.values():
            self.client.watch(name)

        def all_in() -> bool:
            gone = {*self.silent(), *self._reasons_for_leaving()}
            return all(self.client.value(name) is not None or rank in gone for rank, name in keys.items())

        self.client.wait(all_in, timeout_s)
        results: dict[int, T] = {}
        world = World() if self.begin is None else self.begin.world
        for rank, name in keys.items():
            if (value := self.client.value(name)) is not None:
                try:
                    results[rank] = read(value, rank, world)
                except Unreadable:
                    self.unreadable.add(rank)
        return results

    def farewell(self, order: dict[str, Json]) -> None:
        """End the run on all nodes; waits, bounded, until the others have received the report (head only)."""
        self.order(order)
        self.gather("bye", FAREWELL_S, lambda *_: True)

    def leave(self, why: str) -> None:
        """Notify the head that this agent leaves before the end (followers only)."""
        self.client.put_in_beat(urgent=True, leaving=why)
        self.client.flush()

    # --- who is alive ---------------------------------------------------------------------------

    def wait(self, ready: Callable[[], bool], timeout_s: float = float("inf")) -> bool:
        """Wait while the agents that this one depends on are alive. Raises Lost or Left."""
        until = time.monotonic() + timeout_s
        while not self.client.wait(ready, min(0.25, max(until - time.monotonic(), 0.0))):
            self.check()
            if time.monotonic() > until:
                return False
        return True

    def check(self) -> None:
        """Raise Lost if another agent is silent, Left if one left before the end, and StoreLost."""
        self.require_store()
        self.lost.update(self.silent())
        if not self.is_head and time.monotonic() > self.until:
            self.lost.add(0)
        if self.lost:
            raise Lost(sorted(self.lost))
        self.require_presence()

    def require_presence(self) -> None:
        """Raise Left on the head. An agent that left refuses connections, which proves nothing about the path."""
        for rank, why in self._reasons_for_leaving().items():
            raise Left(rank, why)

    def require_store(self) -> None:
        """Raise StoreLost: without its own helpers an agent receives no beats, and no node is the cause."""
        mute = self.is_head and self.client.store_silent_s() > SILENT_S
        if mute or self.client.has_died:
            raise StoreLost(self.client.error or f"no answer for {SILENT_S:.0f} s")

    def _reasons_for_leaving(self) -> dict[int, str]:
        """Return the nodes that left before the end, with the reasons (head only)."""
        beats = {rank: self.client.beats.get(self.ids[rank]) for rank in self.others} if self.is_head else {}
        return {rank: beat.message.leaving for rank, beat in beats.items() if beat and beat.message.leaving}

    def silent(self) -> list[int]:
        """Return the node ranks whose beats no longer come; a follower only gets the head's beats."""
        if not self.is_head:
            quiet = max(self.client.store_silent_s(), self.client.silent_s(HEAD))
            return [0] if quiet > SILENT_S else []
        if self.client.store_silent_s() > SILENT_S / 2:
            return []  # the store is on this host and failing: the others' last beats are older than its last answer
        return [rank for rank in self.others if self.client.silent_s(self.ids[rank]) > SILENT_S]

    def silent_s(self, rank: int) -> float:
        """Return the time since the last beat of a node."""
        return self.client.silent_s(self.ids.get(rank, HEAD))
