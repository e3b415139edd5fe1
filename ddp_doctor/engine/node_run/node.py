"""What each node of a run over several has and does, whether it is the head or not."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddp_doctor.agents import job, lost_nodes
from ddp_doctor.agents.agent_group import AgentGroup
from ddp_doctor.agents.messages import Begin, Contact
from ddp_doctor.agents.roll_call import RollCall
from ddp_doctor.agents.store_client import HEAD
from ddp_doctor.engine.node_run.between_nodes import Surroundings
from ddp_doctor.engine.node_run.session import Session
from ddp_doctor.engine.plan import Plan
from ddp_doctor.facts.roll_call import RollCallFact
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Status, Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import NotRun, Recording
from ddp_doctor.model.report import Report
from ddp_doctor.sources.sockets import Listener
from ddp_doctor.starters import starter_pipe
from ddp_doctor.starters.place import Place

ROLL_CALL = "roll_call"
#: A head that is still heard, and has ordered nothing to an end for this long after the budget, is lost.
_LONGEST_BEYOND_BUDGET_S = 240.0
#: So much earlier the head gives up nodes that are still heard and hand nothing in.
_HEAD_DECIDES_S = 60.0
Judge = Callable[[Recording], Report]


@dataclass
class NodeRun:
    """One node's part of a run. ``recording`` holds its own readings when it begins."""

    session: Session
    place: Place
    plan: Plan
    recording: Recording
    judge: Judge
    join_timeout_s: float
    asked_ranks: int | None  # --nproc-per-node; None: auto
    announce: Callable[[str], None]  # told once what is to be typed on the other hosts
    known: Mapping[str, Check]  # all checks there are, by id: the head's plan is every node's
    of_ranks: Callable[[], Sequence[Reading]] = tuple  # what this node's other ranks told meanwhile
    calling: RollCall = field(init=False)
    listener: Listener | None = None
    company: AgentGroup | None = None
    watch: lost_nodes.Watch | None = None
    _contacts: dict[int, Contact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calling = RollCall(
            server=self.session.server,
            scratch=self.session.scratch,
            place=self.place,
            run_id=self.recording.run_id,
            until=time.monotonic() + self.join_timeout_s,
            tell=self.session.progress,
            asked_ranks=self.asked_ranks,
            not_started=starter_pipe.not_started,
            job=job.job(self.place.launcher, self.session.env),
        )

    def know(self, company: AgentGroup, begin: Begin) -> None:
        """The roll call is over: who takes part, and until when."""
        starter_pipe.met()
        company.began_at = time.monotonic()
        beyond_s = _LONGEST_BEYOND_BUDGET_S - (_HEAD_DECIDES_S if company.is_head else 0.0)
        company.until = company.began_at + begin.options.budget_s + beyond_s
        assert self.listener is not None
        self.listener.admit(begin.secret)
        self._contacts = {contact.node: contact for contact in begin.contacts}
        if self.calling.way is not None:  # the address at which this node found the head is one that works
            met = {"met_at": self.calling.way[0]}
            self._contacts[0] = self._contacts[0].model_copy(update=met)
        self.watch = lost_nodes.Watch(company, self._contacts, begin.secret)

    def look_around(self, checks: Sequence[Check]) -> list[Reading]:
        """Run checks between nodes from here; what was read on this node."""
        company = self.company
        assert company is not None
        begin = company.begin
        assert begin is not None
        offset = 0.0 if company.is_head else company.courier.clock_offset_s(HEAD)
        here = Surroundings(company.my_rank, begin, self._contacts, self.session.env, offset)
        return here.look(checks, self.session.progress)

    def read(self, fact: RollCallFact, node: int) -> None:
        """Note how the roll call went here."""
        reading = Reading(check=ROLL_CALL, status=Status.COLLECTED, node=node, fact=fact.recorded())
        self.session.readings.append(reading)

    def unfinished(self, why: str) -> None:
        """The verdict is to be unsure for this reason, unless what was found makes it sick."""
        own = 0 if self.company is None else max(self.company.my_rank, 0)
        reading = Reading(check=ROLL_CALL, status=Status.FAILED, node=own, reason=why)
        self.session.readings.append(reading)

    def so_far(self) -> Recording:
        """The recording with all that was read until now."""
        not_run = [NotRun(check=check, reason=reason) for check, reason in self.session.left_out]
        return self.recording.model_copy(
            update={
                "readings": (*self.recording.readings, *self.session.readings),
                "trials": tuple(self.session.trials),
                "experiments": tuple(self.session.experiments),
                "not_run": (*self.recording.not_run, *not_run),
            }
        )

    def between(self) -> tuple[Check, ...]:
        """The plan's checks between nodes."""
        return self.plan.at(Where.NODES)

    def rank_checks(self) -> list[Check]:
        """The plan's checks on ranks, torchrun's first."""
        return list(self.plan.at(Where.LAUNCHER, Where.RANK))

    def afterwards(self) -> tuple[Check, ...]:
        """The plan's checks for when the ranks have ended."""
        return self.plan.at(Where.AFTERWARDS)
