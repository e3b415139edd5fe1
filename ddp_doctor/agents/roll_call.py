"""The node check-in: all agents of a run meet on one store, on the endpoint's port, or learn why they cannot."""

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from ddp_doctor.agents.agent_group import AgentGroup, Lost
from ddp_doctor.agents.arrivals import Arrivals
from ddp_doctor.agents.messages import Begin, NodeReport, Opening, ranked
from ddp_doctor.agents.store_client import HEAD, NO_ANSWER, NO_HEAD, StoreClient, StoreLost
from ddp_doctor.facts.cluster import Present, RollCallFact
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.deadlines import MOST_QUEUED, MUTE_S, WORKER_START_S
from ddp_doctor.model.base import Json
from ddp_doctor.parse.options import RENDEZVOUS_PORT, written
from ddp_doctor.ranks import control_store
from ddp_doctor.ranks.control_store import Control
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.sources.network import closed_by
from ddp_doctor.starters.detect import HOSTS_VARIABLE, Launcher
from ddp_doctor.starters.endpoint import Approach, approach, greeting, holder_of, is_mine, resolve
from ddp_doctor.starters.place import Place
from ddp_doctor.starters.request import RunRequest
from ddp_doctor.views.network import advertised

#: Values that a launcher gives to all nodes of one launch, and to no other nodes.
_KEYS = {
    "torchrun": ("torchrun's run", "TORCHELASTIC_RUN_ID"),
    "mpi": ("mpirun's job", "PMIX_NAMESPACE"),
    "ssh": ("the run on", HOSTS_VARIABLE),
}
_LONGEST = 255


@dataclass(frozen=True)
class Job:
    """The job as text, such as ``SLURM step 4711.0``; empty if unknown."""

    name: str = ""
    is_launch: bool = False  # all nodes of a run share it; users may start one run in two allocations

    def is_another(self, name: str) -> bool:
        """Return True if a head of the launch ``name`` must belong to another run."""
        return self.is_launch and bool(name) and name != self.name


def job(launcher: Launcher, env: Mapping[str, str]) -> Job:
    """Return the job of this process, from its launcher's variables."""
    allocated = env.get("SLURM_JOB_ID", "") if "SLURM_HET_SIZE" not in env else ""  # each part has its own
    if launcher == "slurm":
        step = env.get("SLURM_STEP_ID", "")
        return Job(f"SLURM step {allocated}.{step}"[:_LONGEST], True) if allocated and step else Job()
    if launcher in _KEYS:
        what, variable = _KEYS[launcher]
        return Job(f"{what} {env[variable]}"[:_LONGEST], True) if env.get(variable) else Job()
    return Job(f"SLURM job {allocated}"[:_LONGEST]) if allocated else Job()


#: A head introduces itself as soon as its store serves; a store without a head is another program's.
_HEAD_SPEAKS_S = 6.0
_LOOK_FOR_HEAD_S = 2.0
#: On a busy node, the store of a head listens this long before it answers, at most.
_STORE_STARTS_S = (1.0 + MOST_QUEUED) * WORKER_START_S
#: A head that sends beats but has not closed the check-in this long after its deadline is stuck.
_HEAD_CLOSES_S = 60.0


class NotMet(Exception):
    """The check-in failed; ``fact`` has the reason, ``group`` the agents that met the head nevertheless."""

    def __init__(self, fact: RollCallFact, group: AgentGroup | None = None) -> None:
        super().__init__(fact.outcome)
        self.fact, self.group = fact, group


@dataclass
class RollCall:
    """The node check-in, as done by one agent. ``close`` ends the processes it started."""

    request: RunRequest
    place: Place
    server: ForkServer
    run_folder: Path
    run_id: str
    until: float = field(init=False)  # monotonic
    command: str = ""  # the command that starts the other agents
    job: Job = field(init=False)
    own: NodeReport = field(init=False)  # this node's
    way: tuple[str, int] | None = None  # to the store, from a follower
    control: Control | None = None
    client: StoreClient | None = None
    arrivals: Arrivals | None = None  # on the head
    began: float = field(default_factory=time.monotonic)
    shown: str = ""  # the last displayed status of this node
    _addresses: tuple[str, ...] = ()  # of the endpoint's name, on the head

    def __post_init__(self) -> None:
        self._host, self._port = self.place.endpoint or ("", RENDEZVOUS_PORT)
        self.job = job(self.place.launcher, self.request.env)

    def hold(self, own: NodeReport) -> AgentGroup:
        """Meet the other agents. The head returns when all are present, a follower when the head allows it."""
        self.began, self.own = time.monotonic(), own
        self.until = self.began + self.request.join_timeout_s
        addresses, _ = resolve(self._host) if self.place.endpoint else ((), "")
        mine = not self.place.endpoint or is_mine(addresses)
        is_head = mine if self.place.is_head is None else self.place.is_head
        if is_head:
            try:
                with control_store.listen(control_store.ALL_ADDRESSES, self._port):
                    pass
            except OSError as error:
                held = error.strerror or str(error)
            else:
                return self._be_head(addresses, mine)
            try:
                self._call("127.0.0.1").close()
            except StoreLost:  # another program holds the port
                raise NotMet(self._fact("head", "held", error=held, held_by=holder_of(self._port))) from None
        return self._join()

    def close(self) -> None:
        """End the store clients and the store."""
        if self.client is not None:
            self.client.close()
        if self.control is not None:
            self.control.stop()

    @property
    def node_reports(self) -> dict[int, NodeReport]:
        """The reports of the nodes that have checked in, by their agents' ids; only on the head."""
        return self.arrivals.node_reports if self.arrivals else {}

    def _show(self, text: str) -> None:
        if text != self.shown:
            self.shown = text
            self.request.progress(text)

    # --- the head -------------------------------------------------------------------------------

    def _be_head(self, addresses: tuple[str, ...], mine: bool) -> AgentGroup:
        try:
            self.control = control_store.start(self.server, self.run_folder, control_store.ALL_ADDRESSES, self._port)
        except RuntimeError as error:
            raise NotMet(self._fact("head", "held", error=str(error))) from error
        self.client = StoreClient(self.server, self.run_folder, "127.0.0.1", self._port, HEAD, self.place.nnodes)
        self.client.wait_connected(MUTE_S)
        opening = Opening(
            run_id=self.run_id, join_s=self.until - time.monotonic(), launch=self.job.name if self.job.is_launch else ""
        )
        self.client.put("head", opening.model_dump())
        self._addresses = addresses
        # The endpoint's address as the others see it, if other hosts can reach it.
        outside = [address for address in addresses if not address.startswith("127.") and address != "::1"]
        mine_too = {"claimed_rank": 0, "met_at": next(iter(outside), ""), "job": self.job.name}
        own = self.own.model_copy(update=mine_too)
        arrivals = Arrivals(self.client, self.place, self.until, self.request.starter.not_started, {HEAD: own})
        self.arrivals = arrivals
        look_at = time.monotonic() + _LOOK_FOR_HEAD_S
        while True:
            arrivals.admit()
            outcome = arrivals.outcome()
            if outcome == "missing" and not mine:
                outcome = "misplaced"
            if outcome == "met":
                return AgentGroup(self.client, ranked(self.node_reports), my_rank=0)
            if outcome is not None:
                fact = self._fact("head", outcome)
                if outcome == "missing":
                    # If other nodes came, the port is open.
                    alone = len(self.node_reports) == 1 and not arrivals.unreadable
                    closed = closed_by(self._port, self._addresses, self.request.env) if alone else None
                    fact = self._fact("head", outcome, missing=self._missing(), closed_by=closed)
                raise NotMet(fact, self.present())
            if not mine and time.monotonic() > look_at:
                look_at = time.monotonic() + _LOOK_FOR_HEAD_S
                leader = self._run_id_at_endpoint()
                if leader not in ("", self.run_id):
                    self.close()
                    self.control = self.arrivals = None
                    return self._join()
                mine = leader == self.run_id  # for example a service address that leads back to this host
            self._show_who_is_here()

    def _run_id_at_endpoint(self) -> str:
        """Return the run id of the head at the endpoint on another host; empty if there is none."""
        found = approach(self._host, self._port, 0.0, lambda _text: None, timeout_s=1.0)
        if found.outcome != "connected":
            return ""
        with suppress(StoreLost):
            client = self._call(found.address)
            client.close()
            return client.opening().run_id
        return ""

    def _show_who_is_here(self) -> None:
        missing = self._missing()
        hosts = self.place.expected_hosts
        names = [hosts[rank] for rank in missing if rank < len(hosts)]
        text = f"{len(self.node_reports)} of {self.place.nnodes} nodes here"
        if names:
            text += f"; waiting for {', '.join(names[:8])}{', …' if names[8:] else ''}"
        assert self.client is not None
        self.client.put_in_beat(roll=text)
        self._show(text)

    def _missing(self) -> tuple[int, ...]:
        here = ranked(self.node_reports)
        return tuple(rank for rank in range(self.place.nnodes) if rank not in here)

    def present(self) -> AgentGroup | None:
        """Return the agents that have come, to send them the end, or None if this agent has not met any."""
        return None if self.client is None else AgentGroup(self.client, dict(enumerate(self.node_reports)), my_rank=0)

    # --- the others -----------------------------------------------------------------------------

    def _join(self) -> AgentGroup:
        way = approach(self._host or "127.0.0.1", self._port, self.until, self._show)
        if way.outcome != "connected":
            raise NotMet(self._fact("follower", way.outcome, way))
        self.client = self._call_again(way)
        launch = self.client.opening().launch
        if self.job.is_another(launch):
            raise NotMet(self._fact("follower", "other_job", way, held_by=launch))
        self.way = (way.address, self._port)
        self.client.follow([HEAD])
        mine = self.own.model_copy(update={"met_at": way.met_at, "job": self.job.name})
        self.client.join(mine.model_dump(mode="json"), MUTE_S)
        until = time.monotonic() + self.client.opening().join_s + _HEAD_CLOSES_S
        group = AgentGroup(self.client, {0: HEAD}, my_rank=-1, until=until)
        order = self._await_begin(group, way)
        if order["do"] == "end":
            group.ended = order
            return group
        begin: Begin = order["begin"]
        group.ids, group.begin = begin.ids, begin
        place = [rank for rank, agent in begin.ids.items() if agent == self.client.my_id]
        if not place:
            raise NotMet(self._fact("follower", "too_many", way))
        group.my_rank = place[0]
        if len(begin.world.ranks_of(place[0])) != self.own.world.nproc_per_node:
            error = "its plan has another number of ranks for this node than this node reported"
            raise NotMet(self._fact("follower", "foreign", way, error=error))
        return group

    def _await_begin(self, group: AgentGroup, way: Approach) -> dict[str, Json]:
        """Wait for the head's first order while its beats come; the head's own deadline counts."""
        assert self.client is not None
        self.client.watch("order/1")
        while self.client.value("order/1") is None:
            try:
                if group.wait(lambda: group.client.value("order/1") is not None, 0.5):
                    break
            except Lost:
                raise NotMet(self._fact("follower", "missing", way, error="the head node stopped responding")) from None
            self._show(self.client.beats[HEAD].message.roll or "waiting for the head")
        return group.next_order()

    def _call_again(self, way: Approach) -> StoreClient:
        """Connect, with a second try. A silent server is tried for as long as a head's store may take to start."""
        tries, until = 0, min(self.until, time.monotonic() + _STORE_STARTS_S)
        while True:
            try:
                return self._call(way.address)
            except StoreLost as error:
                tries += 1
                outcome = "mute" if str(error) == NO_ANSWER else "foreign"
                greets = greeting(way.address, self._port) if outcome == "mute" else ""
                if greets:
                    raise NotMet(self._fact("follower", "foreign", way, error=f'the server sent "{greets}"')) from error
                if tries > 1 and (outcome == "foreign" or time.monotonic() > until):
                    raise NotMet(self._fact("follower", outcome, way, error=str(error))) from error
                self._show(f"something listens on {self._host}:{self._port} and does not answer")

    def _call(self, address: str) -> StoreClient:
        """Return a client of a store where a head of ddp-doctor has introduced itself. Raises StoreLost."""
        client = StoreClient(self.server, self.run_folder, address, self._port, -1, self.place.nnodes)
        try:
            client.wait_connected(MUTE_S)
            client.await_value("head", _HEAD_SPEAKS_S, NO_HEAD)
            client.opening()
        except StoreLost:
            client.close()
            raise
        return client

    # --- the fact -------------------------------------------------------------------------------

    def _fact(self, role: str, outcome: str, way: Approach | None = None, **more: object) -> RollCallFact:
        fields = {
            "role": role,
            "outcome": outcome,
            "endpoint_host": self._host,
            "endpoint_port": self._port,
            "endpoint_addresses": way.addresses if way else self._addresses,
            "attempts": way.attempts if way else (),
            "error": way.error if way else "",
            "nnodes": self.place.nnodes,
            "claimed_rank": self.place.node_rank,
            "hostname": self.own.hostname,
            "job": self.job.name,
            "present": tuple(Present(**dict(report)) for report in self.node_reports.values()),
            "not_started": self.request.starter.not_started(),
            "unreadable": tuple(dict.fromkeys(self.arrivals.unreadable))[:8] if self.arrivals else (),
            "command": self.command,
            "asked_ranks": self.request.nproc_per_node,
            "asked_s": round(self.until - self.began, 1),
            "waited_s": round(time.monotonic() - self.began, 1),
        }
        return RollCallFact.model_validate(fields | more)

    def met_fact(self, group: AgentGroup) -> RollCallFact:
        """Return the fact of a check-in that all nodes joined."""
        return self._fact("head" if group.is_head else "follower", "met")


def join_command(place: Place, fact: InterfacesFact | None) -> str:
    """Return the command for the other hosts, with the given endpoint or this host's name or address.

    A name that resolves only to the loopback address here may not work on other hosts: then the address is used.
    """
    host, port = place.endpoint or (socket.gethostname(), RENDEZVOUS_PORT)
    if place.endpoint is None:
        addresses, _ = resolve(host, 2.0)
        if all(ip_address(address.partition("%")[0]).is_loopback for address in addresses):
            host = (advertised(fact, "nccl") if fact else None) or host
    return f"ddp-doctor run --nnodes {place.nnodes} --rdzv-endpoint {written(host, port)}"
