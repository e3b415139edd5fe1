"""The follower agent: runs the head agent's orders and returns its readings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.agents.agent_group import AgentGroup
from ddp_doctor.agents.framing import Unreadable
from ddp_doctor.agents.remote_ranks import StoreRemoteRanks
from ddp_doctor.engine.node_run.groups import run_own_group
from ddp_doctor.engine.node_run.partial_recording import PartialRecording
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.base import Json
from ddp_doctor.model.check import Check
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks.environment import Refused
from ddp_doctor.ranks.node_ranks import NodeRanks
from ddp_doctor.ranks.trial import TrialResult


@dataclass
class FollowerAgent:
    """The agent of a node that is not the head; keeps its own readings in case the head is lost."""

    group: AgentGroup
    node_ranks: NodeRanks
    known: Mapping[str, Check]
    probe_between: Callable[[Sequence[Check]], list[Reading]]
    partial: PartialRecording

    def run(self) -> dict[str, Json]:
        """Follow orders; return the last one, which has the head's report.

        Raises Lost if the head stops responding, and Unreadable if its order cannot be executed on this node.
        """
        while True:
            order = self.group.next_order()
            if order["do"] == "end":
                self.group.hand_in("bye", value=True)
                self.group.client.flush()
                return order
            unknown = [name for name in order["checks"] if name not in self.known]
            if unknown:
                raise ValueError(
                    f"this node's ddp-doctor does not have the check {unknown[0]}; install the head node's release on"
                    " this node"
                )
            checks = [self.known[name] for name in order["checks"]]
            if order["do"] == "probe":
                readings = self.probe_between(checks)
                self.partial.readings.extend(readings)
                self.group.hand_in(order["when"], [reading.model_dump(mode="json") for reading in readings])
            else:
                self._trial(order, checks)

    def _trial(self, order: dict[str, Json], checks: Sequence[Check]) -> None:
        record: TrialRecord = order["record"]
        try:
            if order["do"] == "groups":
                result = run_own_group(self.node_ranks, self.group, record, order["groups"])
                if result is not None:
                    self._hand_in(record, result)
                return
            remote = StoreRemoteRanks(self.group, record.trial)
            if order["do"] == "torchrun":
                with self.node_ranks.running_under_torchrun(record, checks, remote) as (result, launch):
                    self._hand_in(record, result)
                    launch.notes(deadlines.CHECK_S if result.record.outcome == "finished" else 0.0)
            else:
                self._hand_in(record, self.node_ranks.run_trial(record, checks, order["skip_pairs"], remote))
        except Refused as refused:
            raise Unreadable(f"this node refuses a test that the head node ordered: {refused}") from refused

    def _hand_in(self, ordered: TrialRecord, result: TrialResult) -> None:
        """Send the result under the number of the ordered trial, which is the number of its first group."""
        self.partial.keep(result)
        self.group.hand_in(f"result/{ordered.trial}", result.model_dump(mode="json"))
