"""A trial over several nodes: how it ends on all of them, and how their parts are merged."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from ddp_doctor.agents.agent_group import AgentGroup, Lost
from ddp_doctor.agents.framing import JUNK, Unreadable
from ddp_doctor.knowledge.deadlines import HAND_IN_S
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks.rank_state import late_steps
from ddp_doctor.ranks.trial import TrialResult

_OUTCOMES = get_args(TrialRecord.model_fields["outcome"].annotation)


class StoreRemoteRanks:
    """The ranks of the other nodes, as a trial on one node sees them. The first agent that ends it ends it for all."""

    def __init__(self, group: AgentGroup, trial: str) -> None:
        self._group = group
        self._client = group.client
        self._trial = trial
        self._key = f"stop/{trial}"
        self._is_done = False
        self._ending = False
        self._events = _Sum()
        self._activity = _Sum()
        self.lost: tuple[int, ...] = ()
        self._client.watch(self._key)

    def ended(self) -> str | None:
        """Return how the trial ended, or None. Raises Left if another agent left, StoreLost and Unreadable."""
        if outcome := self._said():
            return outcome
        try:
            self._group.check()
        except Lost as lost:
            self.lost = lost.nodes
            self.end("stuck")
            return "stuck"
        if self._group.is_head and self._is_done and not self._ending:
            beats = {rank: self._client.beats.get(self._group.ids[rank]) for rank in self._group.others}
            late = tuple(rank for rank, beat in beats.items() if beat is None or beat.message.done != self._trial)
            if not late:
                self.end("finished")
            elif time.monotonic() > self._group.until:  # they send beats, but are stuck themselves
                self.lost = late
                self.end("stuck")
        return None

    def _said(self) -> str | None:
        """Return the outcome set by some agent, or None. Raises Unreadable."""
        outcome = self._client.value(self._key)
        if outcome is None or outcome in _OUTCOMES:
            return outcome and str(outcome)
        raise Unreadable(f"a node reported the end of a rank test with {JUNK}")

    def done(self) -> None:
        """Report the finished trial with the next beat."""
        if not self._is_done:
            self._is_done = True
            self._client.put_in_beat(urgent=True, done=self._trial)

    def end(self, outcome: str) -> None:
        """End the trial with this outcome, unless another agent was first; the store ensures that."""
        self._ending = True
        self._client.put_first(self._key, outcome)

    def abandon(self) -> None:
        """End the trial for all if this is the head: other ranks would wait for its ranks."""
        if self._group.is_head:
            self.end("interrupted")

    def note(self, events: int, activity: int) -> None:
        """Report this node's counts; the head adds up the counts of all nodes and sends the sum with its beats."""
        beats = [beat.message for beat in self._client.beats.values()]
        self._client.put_in_beat(
            events=self._added_up(events, [beat.events for beat in beats], self._events),
            activity=self._added_up(activity, [beat.activity for beat in beats], self._activity),
        )

    def _added_up(self, own: int, counts: Sequence[int], known: "_Sum") -> int:
        total = own + sum(counts) if self._group.is_head else own
        known.take(max([total, *counts]))
        return total

    def moved_since(self, moment: float) -> bool:
        """Return True if the sum of events has changed since this moment."""
        return self._events.changed_at > moment

    @property
    def active_at(self) -> float:
        """The time of the last change of one of the sums."""
        return max(self._events.changed_at, self._activity.changed_at)


class GroupRanks(StoreRemoteRanks):
    """The ranks in a trial of some ``nodes``, which may not include the head.

    Each node that has finished is counted in the store, and the last one ends the trial. A lost node does not end the
    trial of other groups.
    """

    def __init__(self, group: AgentGroup, trial: str, nodes: Sequence[int], limit_s: float) -> None:
        super().__init__(group, trial)
        self._nodes = nodes
        self._longest_s = limit_s + HAND_IN_S
        self._until = float("inf")  # until then, the trial itself ends ranks that are not done

    def ended(self) -> str | None:
        """Return how the trial ended, or None. Raises Left if an agent left, StoreLost and Unreadable."""
        if outcome := self._said():
            return outcome
        self._group.require_store()
        self._group.require_presence()
        self.lost = tuple(node for node in self._group.silent() if node == 0 or node in self._nodes)
        if self.lost or time.monotonic() > self._until:
            self.end("stuck")
            return "stuck"
        return None

    def done(self) -> None:
        """Count the own node as finished."""
        if not self._is_done:
            self._is_done = True
            self._until = time.monotonic() + self._longest_s
            self._client.put_last(self._key, "finished", len(self._nodes))

    def abandon(self) -> None:
        """End the trial for the entire group."""
        self.end("interrupted")


@dataclass
class _Sum:
    """The sum of all nodes' counts, and when it last changed (monotonic)."""

    value: int = 0
    changed_at: float = 0.0

    def take(self, value: int) -> None:
        if value != self.value:
            self.value, self.changed_at = value, time.monotonic()


def merged(parts: Sequence[TrialResult], absent: tuple[int, ...]) -> TrialResult:
    """Return one result from all parts, the head's first. The ``absent`` nodes sent none.

    The trial was judged in the earliest check that some node's ranks were in.
    """
    records = [part.record for part in parts]
    head = records[0]
    evidence = sorted((rank for record in records for rank in record.evidence), key=lambda rank: rank.rank)
    if head.outcome == "finished":
        evidence = late_steps(evidence)
    lost = {node for record in records for node in record.lost_nodes}
    outcome = "stuck" if absent and head.outcome == "finished" else head.outcome
    if any(record.outcome == "interrupted" for record in records):  # ended by ddp-doctor on one node
        outcome = "interrupted"
    judged = [record.judged_check for record in records if record.judged_check in head.checks]
    record = head.model_copy(
        update={
            "judged_check": min(judged, key=head.checks.index, default=None),
            "waited_s": max(record.waited_s for record in records),
            "evidence": tuple(evidence),
            "notes": tuple(note for record in records for note in record.notes),
            "lost_nodes": tuple(sorted({*lost, *absent})),
            "outcome": outcome,
        }
    )
    return TrialResult(record=record, readings=tuple(reading for part in parts for reading in part.readings))
