"""The roll call: all agents of a run meet on one store, on the endpoint's port, or learn why they cannot."""

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.agents.agent_group import AgentGroup, Lost
from ddp_doctor.agents.arrivals import Arrivals
from ddp_doctor.agents.job import Job
from ddp_doctor.agents.messages import Begin, NodeReport, Opening, ranked
from ddp_doctor.agents.store_client import HEAD, StoreClient, StoreLost
from ddp_doctor.facts.roll_call import AttemptSeen, NotStarted, Outcome, Present, RollCallFact
from ddp_doctor.knowledge.deadlines import MUTE_S
from ddp_doctor.model.base import Json
from ddp_doctor.ranks import control_store
from ddp_doctor.ranks.control_store import Control
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.starters.endpoint import Approach, approach, holder_of, is_mine, resolve
from ddp_doctor.starters.place import Place

#: Of torchrun's c10d rendezvous (torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py).
DEFAULT_PORT = 29400
#: A head says who it is as soon as its store serves; a store that keeps still is another program's.
_HEAD_SPEAKS_S = 6.0
_LOOK_ELSEWHERE_S = 2.0
#: A head that is heard, and this long after its own deadline has not closed the roll call, is stuck.
_HEAD_CLOSES_S = 60.0


class NotMet(Exception):
    """The roll call failed; ``fact`` says how, ``company`` are those who met the head all the same."""

    def __init__(self, fact: RollCallFact, company: AgentGroup | None = None) -> None:
        super().__init__(fact.outcome)
        self.fact, self.company = fact, company


@dataclass
class RollCall:
    """One agent at the roll call. ``close`` ends what it started."""

    server: ForkServer
    scratch: Path
    place: Place
    run_id: str
    until: float  # monotonic
    tell: Callable[[str], None]
    not_started: Callable[[], tuple[NotStarted, ...]] = tuple
    command: str = ""
    asked_ranks: int | None = None
    job: Job = field(default_factory=Job)
    way: tuple[str, int] | None = None  # to the store, from a follower
    control: Control | None = None
    courier: StoreClient | None = None
    attendance: Arrivals | None = None  # on the head
    _began: float = field(default_factory=time.monotonic)
    _told: str = ""
    _addresses: tuple[str, ...] = ()  # of the endpoint's name, on the head

    def hold(self, card: NodeReport) -> AgentGroup:
        """Meet the others. The head returns when all are here, a follower when the head says so."""
        self._began = time.monotonic()
        addresses, _ = resolve(self._host) if self.place.endpoint else ((), "")
        mine = not self.place.endpoint or is_mine(addresses)
        leads = mine if self.place.is_head is None else self.place.is_head
        if leads:
            held = self._cannot_listen()
            if not held:
                return self._lead(card, addresses, mine)
            if not self._is_held_by_a_head():
                raise NotMet(self._fact("head", "held", card, error=held, held_by=holder_of(self._port)))
        return self._join(card)

    def close(self) -> None:
        """End the couriers and the store."""
        if self.courier is not None:
            self.courier.close()
        if self.control is not None:
            self.control.stop()

    @property
    def cards(self) -> dict[int, NodeReport]:
        """The cards of those who have come, by their agents' ids; on the head alone."""
        return self.attendance.cards if self.attendance else {}

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self.tell(text)

    @property
    def _host(self) -> str:
        return self.place.endpoint[0] if self.place.endpoint else ""

    @property
    def _port(self) -> int:
        return self.place.endpoint[1] if self.place.endpoint else DEFAULT_PORT

    # --- the head -------------------------------------------------------------------------------

    def _cannot_listen(self) -> str:
        try:
            with control_store.listen(control_store.EVERYWHERE, self._port):
                return ""
        except OSError as error:
            return error.strerror or str(error)

    def _is_held_by_a_head(self) -> bool:
        try:
            courier = self._call("127.0.0.1")
        except StoreLost:
            return False
        courier.close()
        return True

    def _lead(self, card: NodeReport, addresses: tuple[str, ...], mine: bool) -> AgentGroup:
        try:
            self.control = control_store.start(
                self.server, self.scratch, control_store.EVERYWHERE, self._port
            )
        except RuntimeError as error:
            raise NotMet(self._fact("head", "held", card, error=str(error))) from error
        self.courier = StoreClient(
            self.server, self.scratch, "127.0.0.1", self._port, HEAD, self.place.nnodes
        )
        self.courier.wait_connected(MUTE_S)
        opening = Opening(
            run_id=self.run_id,
            join_s=self.until - time.monotonic(),
            launch=self.job.name if self.job.is_launch else "",
        )
        self.courier.put("head", opening.model_dump())
        self._addresses = addresses
        mine_too = {"claimed_rank": 0, "met_at": self._own_end(addresses), "job": self.job.name}
        own = card.model_copy(update=mine_too)
        attendance = Arrivals(self.courier, self.place, self.until, self.not_started, {HEAD: own})
        self.attendance = attendance
        elsewhere_at = time.monotonic() + _LOOK_ELSEWHERE_S
        while True:
            attendance.admit()
            outcome = attendance.outcome()
            if outcome == "missing" and not mine:
                outcome = "misplaced"
            if outcome == "met":
                return AgentGroup(self.courier, ranked(self.cards), my_rank=0)
            if outcome is not None:
                raise NotMet(self._head_fact(outcome), self.present())
            if not mine and time.monotonic() > elsewhere_at:
                elsewhere_at = time.monotonic() + _LOOK_ELSEWHERE_S
                leader = self._who_leads_there()
                if leader not in ("", self.run_id):
                    self.close()
                    self.control = self.attendance = None
                    return self._join(card)
                mine = leader == self.run_id  # a service's address, say, that leads back here
            self._tell_who_is_here()

    def _own_end(self, addresses: tuple[str, ...]) -> str:
        """Where the others meet the head: the endpoint's address, if it can be met from elsewhere."""
        return next((one for one in addresses if not one.startswith("127.") and one != "::1"), "")

    def _who_leads_there(self) -> str:
        """The run of the head at the endpoint, which is no address of this host; empty where there is none."""
        seen = approach(self._host, self._port, 0.0, lambda _text: None, timeout_s=1.0)
        if seen.outcome != "connected":
            return ""
        with suppress(StoreLost):
            courier = self._call(seen.address)
            courier.close()
            return courier.opening().run_id
        return ""

    def _tell_who_is_here(self) -> None:
        missing = self._missing()
        hosts = self.place.expected_hosts
        names = [hosts[rank] for rank in missing if rank < len(hosts)]
        text = f"{len(self.cards)} of {self.place.nnodes} nodes here"
        if names:
            text += f"; waiting for {', '.join(names[:8])}{', …' if names[8:] else ''}"
        assert self.courier is not None
        self.courier.say(roll=text)
        self._tell(text)

    def _missing(self) -> tuple[int, ...]:
        here = ranked(self.cards)
        return tuple(rank for rank in range(self.place.nnodes) if rank not in here)

    def present(self) -> AgentGroup | None:
        """Those who have come so far, to take leave of; None where this agent has met nobody."""
        return (
            None if self.courier is None else AgentGroup(self.courier, dict(enumerate(self.cards)), my_rank=0)
        )

    def _head_fact(self, outcome: Outcome) -> RollCallFact:
        missing = self._missing() if outcome == "missing" else ()
        return self._fact("head", outcome, self.cards[HEAD], missing=missing)

    # --- the others -----------------------------------------------------------------------------

    def _join(self, card: NodeReport) -> AgentGroup:
        way = approach(self._host or "127.0.0.1", self._port, self.until, self._tell)
        if way.outcome != "connected":
            raise NotMet(self._fact("follower", way.outcome, card, way))
        self.courier = self._call_twice(way, card)
        launch = self.courier.opening().launch
        if self.job.is_another(launch):
            raise NotMet(self._fact("follower", "other_job", card, way, held_by=launch))
        self.way = (way.address, self._port)
        self.courier.follow([HEAD])
        mine = card.model_copy(update={"met_at": way.met_at, "job": self.job.name})
        self.courier.join(mine.model_dump(mode="json"), MUTE_S)
        company = AgentGroup(
            self.courier, {0: HEAD}, my_rank=-1, until=time.monotonic() + self._head_closes_s()
        )
        order = self._await_begin(company, card, way)
        if order["do"] == "end":
            company.ended = order
            return company
        begin: Begin = order["begin"]
        company.ids, company.begin = begin.ids, begin
        place = [rank for rank, one in begin.ids.items() if one == self.courier.my_id]
        if not place:
            raise NotMet(self._fact("follower", "too_many", card, way))
        company.my_rank = place[0]
        if len(begin.world.ranks_of(place[0])) != card.world.nproc_per_node:
            error = "its plan has another number of ranks for this node than this node reported"
            raise NotMet(self._fact("follower", "foreign", card, way, error=error))
        return company

    def _await_begin(self, company: AgentGroup, card: NodeReport, way: Approach) -> dict[str, Json]:
        """The head's own deadline counts, and until then this agent waits for its word if it is heard."""
        assert self.courier is not None
        self.courier.watch("order/1")
        while self.courier.value("order/1") is None:
            try:
                if company.wait(lambda: company.courier.value("order/1") is not None, 0.5):
                    break
            except Lost:
                raise NotMet(
                    self._fact("follower", "missing", card, way, error="the head fell silent")
                ) from None
            heard = self.courier.beats[HEAD].fields.get("roll")
            self._tell(str(heard or "waiting for the head"))
        return company.next_order()

    def _head_closes_s(self) -> float:
        """Until the head, where it is not stuck itself, has closed the roll call."""
        assert self.courier is not None
        return self.courier.opening().join_s + _HEAD_CLOSES_S

    def _call_twice(self, way: Approach, card: NodeReport) -> StoreClient:
        """A server that does not speak gets a second chance: it may be a head that only begins to serve."""
        try:
            return self._call(way.address)
        except StoreLost:
            self._tell(f"something listens on {self._host}:{self._port} and does not answer")
        try:
            return self._call(way.address)
        except StoreLost as error:
            mute = str(error) == "no answer"
            raise NotMet(
                self._fact("follower", "mute" if mute else "foreign", card, way, error=str(error))
            ) from error

    def _call(self, address: str) -> StoreClient:
        """A courier to a store that a head of ours speaks on. Raises StoreLost."""
        courier = StoreClient(self.server, self.scratch, address, self._port, -1, self.place.nnodes)
        try:
            courier.wait_connected(MUTE_S)
            courier.await_opening(_HEAD_SPEAKS_S)
        except StoreLost:
            courier.close()
            raise
        return courier

    # --- what is recorded -----------------------------------------------------------------------

    def _fact(
        self, role: str, outcome: str, card: NodeReport, way: Approach | None = None, **more: object
    ) -> RollCallFact:
        fields = {
            "role": role,
            "outcome": outcome,
            "endpoint_host": self._host,
            "endpoint_port": self._port,
            "endpoint_addresses": way.addresses if way else self._addresses,
            "attempts": tuple(AttemptSeen.model_validate(vars(one)) for one in (way.attempts if way else ())),
            "error": way.error if way else "",
            "nnodes": self.place.nnodes,
            "claimed_rank": self.place.node_rank,
            "hostname": card.hostname,
            "job": self.job.name,
            "present": tuple(
                Present(hostname=one.hostname, claimed_rank=one.claimed_rank, nnodes=one.nnodes, job=one.job)
                for one in self.cards.values()
            ),
            "not_started": self.not_started(),
            "unreadable": self.attendance.unreadable_names() if self.attendance else (),
            "command": self.command,
            "asked_ranks": self.asked_ranks,
            "asked_s": round(self.until - self._began, 1),
            "waited_s": round(time.monotonic() - self._began, 1),
        }
        return RollCallFact.model_validate(fields | more)

    def met_fact(self, card: NodeReport, company: AgentGroup) -> RollCallFact:
        """The fact of a roll call that all came to."""
        return self._fact("head" if company.is_head else "follower", "met", card)


def secret() -> str:
    """What the listeners of one run know one another by."""
    return secrets.token_hex(16)
