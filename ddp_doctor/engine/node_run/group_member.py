"""What each node of a run over several has and does, whether it is the head or not."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddp_doctor.agents import silence_watch
from ddp_doctor.agents.agent_group import AgentGroup
from ddp_doctor.agents.messages import Begin, Contact
from ddp_doctor.agents.roll_call import RollCall
from ddp_doctor.agents.store_client import HEAD
from ddp_doctor.engine.collect import collect
from ddp_doctor.engine.node_run import other_networks
from ddp_doctor.engine.node_run.node import NodeRun
from ddp_doctor.facts.cluster import RollCallFact
from ddp_doctor.knowledge.network.path_quality import neighbours
from ddp_doctor.model.check import ROLL_CALL, Check
from ddp_doctor.model.choices import Status
from ddp_doctor.model.context import Peer
from ddp_doctor.model.fact import Reading
from ddp_doctor.sources.machine import LiveNodesContext
from ddp_doctor.sources.sockets import Listener
from ddp_doctor.starters.place import Place

#: A head whose beats arrive, and that does not end the run for this long after the budget, is lost.
_LONGEST_BEYOND_BUDGET_S = 240.0
#: The head gives up nodes whose beats arrive and that hand nothing in this much earlier.
_HEAD_DECIDES_S = 60.0


@dataclass
class GroupMember(NodeRun):
    """One node's part of a run over several."""

    roll_call: RollCall = field(init=False)
    listener: Listener | None = None
    group: AgentGroup | None = None
    watch: silence_watch.Watch | None = None
    _contacts: dict[int, Contact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        session = self.session
        self.roll_call = RollCall(self.request, self.place, session.server, session.run_folder, self.recording.run_id)

    @property
    def place(self) -> Place:
        """The place of this node among the others."""
        assert self.request.place is not None
        return self.request.place

    def needs_torch(self) -> bool:
        """The control store is torch's."""
        return True

    def begin(self, group: AgentGroup, begin: Begin) -> None:
        """The roll call is over: note who takes part, and until when."""
        self.request.starter.met()
        group.began_at = time.monotonic()
        beyond_s = _LONGEST_BEYOND_BUDGET_S - (_HEAD_DECIDES_S if group.is_head else 0.0)
        group.until = group.began_at + begin.options.budget_s + beyond_s
        assert self.listener is not None
        self.listener.admit(begin.secret)
        self._contacts = {contact.node: contact for contact in begin.contacts}
        if self.roll_call.way is not None:  # the address at which this node found the head is one that works
            met = {"met_at": self.roll_call.way[0]}
            self._contacts[0] = self._contacts[0].model_copy(update=met)
        self.watch = silence_watch.Watch(group, self._contacts, begin.secret)

    def probe_between(self, checks: Sequence[Check]) -> list[Reading]:
        """Run checks between nodes from here; what was read on this node."""
        group = self.group
        assert group is not None
        begin = group.begin
        assert begin is not None
        contacts = [self._contacts[node] for node in neighbours(group.my_rank, len(self._contacts))]
        peers = tuple(
            Peer(
                contact.node,
                contact.hostname,
                contact.port,
                contact.advertised or contact.met_at,
                contact.met_at,
                other_networks.between(self._contacts[group.my_rank], contact),
            )
            for contact in contacts
        )

        def context(deadline: float) -> LiveNodesContext:
            return LiveNodesContext(
                self.request.env,
                deadline,
                node=group.my_rank,
                world=begin.world,
                level=begin.options.level,
                peers=peers,
                secret=begin.secret,
                clock_offset_s=0.0 if group.is_head else group.client.clock_offset_s(HEAD),
            )

        return collect(checks, context, self.request.progress, self.partial.readings)

    def note_roll_call(self, fact: RollCallFact, node: int) -> None:
        """Note how the roll call went here."""
        reading = Reading(check=ROLL_CALL, status=Status.COLLECTED, node=node, fact=fact.recorded())
        self.partial.readings.append(reading)

    def unfinished(self, why: str) -> None:
        """The verdict is to be unsure for this reason, unless what was found makes it sick."""
        own = 0 if self.group is None else max(self.group.my_rank, 0)
        reading = Reading(check=ROLL_CALL, status=Status.FAILED, node=own, reason=why)
        self.partial.readings.append(reading)
