"""The part of one node in a run over several nodes: check-in, checks between nodes, trials, one report.

The head decides and judges; the other nodes follow its orders and end with its report. A node that loses the head, or
never found it, ends with its own readings.
"""

import secrets
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from ddp_doctor.agents import messages, roll_call, silence_watch
from ddp_doctor.agents.agent_group import AgentGroup, Left, Lost
from ddp_doctor.agents.framing import JUNK, Unreadable
from ddp_doctor.agents.messages import Begin, Contact, NodeReport, at_node, ranked, world_of
from ddp_doctor.agents.roll_call import NotMet, RollCall
from ddp_doctor.agents.store_client import HEAD, StoreLost
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.collect import collect
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.engine.isolation.conduct import isolate
from ddp_doctor.engine.node_run import other_networks
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.alone import run_alone
from ddp_doctor.engine.node_run.follower_agent import FollowerAgent
from ddp_doctor.engine.node_run.node import NodeRun
from ddp_doctor.engine.node_run.partial_recording import interrupted_after
from ddp_doctor.engine.prove.experiments import prove
from ddp_doctor.engine.repeats import repeat
from ddp_doctor.facts.cluster import RollCallFact
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.deadlines import HAND_IN_S, longest_s
from ddp_doctor.knowledge.network.path_quality import neighbors
from ddp_doctor.model.base import Json
from ddp_doctor.model.check import ISOLATION, PROCESS_GROUP, ROLL_CALL, Check
from ddp_doctor.model.choices import Status, Where
from ddp_doctor.model.context import Peer
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import OWN_PROCESS, Recording, World
from ddp_doctor.model.report import Report
from ddp_doctor.ranks.node_ranks import NodeRanks
from ddp_doctor.sources.machine import LiveNodesContext
from ddp_doctor.sources.sockets import Listener
from ddp_doctor.starters.place import Place
from ddp_doctor.views.gpus import nccl_without_gpu
from ddp_doctor.views.isolation import leaves_of
from ddp_doctor.views.network import advertised
from ddp_doctor.wording.nodes import host, hosts

#: The effect on ranks of an error of the checks that run before ranks start, by code of the rule.
_RANKS_DO = {rule.code: rule.ranks for check in CHECKS if check.stops_ranks for rule in check.rules}
#: A head that still sends beats but does not end the run this long after the budget is lost.
_LONGEST_BEYOND_BUDGET_S = 240.0
#: The head gives up nodes that send beats but no readings this much earlier.
_HEAD_DECIDES_S = 60.0


@dataclass
class ManyNodes(NodeRun):
    """The part of one node in a run, from the node check-in to the report that all nodes print."""

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

    def run(self) -> None:
        """Run to the end, whatever happens to the other nodes."""
        self.listener = Listener(self._answer)
        self.roll_call.command = roll_call.join_command(self.place, self.recording.first(InterfacesFact))
        if self.place.endpoint is None:
            self.request.announce(self.roll_call.command)
        try:
            self._meet_and_work()
        except NotMet as failed:
            self._not_met(failed)
        except StoreLost as lost:
            own = str(lost).startswith(OWN_PROCESS)
            self._broken_off(
                str(lost) if own else f"the connection to ddp-doctor's TCPStore on the head node failed: {lost}"
            )
        except Unreadable as junk:
            self._broken_off(str(junk))
            self.leave(str(junk))
        except (Lost, Left) as gone:
            self._note_gone(gone)

    def close(self) -> None:
        """Close what this node still holds open, whenever it was interrupted."""
        if self.listener is not None:
            self.listener.stop()
        self.roll_call.close()

    # --- meeting --------------------------------------------------------------------------------

    def _meet_and_work(self) -> None:
        if not self.session.torch_is_imported(self.rank_checks()):
            return
        self.of_ranks()
        with self.request.starter.roll_call():
            self.group = group = self.roll_call.hold(self._node_report())
        if group.ended is not None:
            group.hand_in("bye", value=True)
            group.client.flush()
            self._take_report(group.ended)
        elif group.is_head:
            decide(self, group)
        else:
            self._follow(group)

    def _node_report(self) -> NodeReport:
        world = self.recording.world or World()
        fact = self.recording.first(InterfacesFact)
        return NodeReport(
            hostname=world.nodes[0].hostname,
            nnodes=self.place.nnodes,
            claimed_rank=self.place.node_rank,
            order=self.place.order,
            version=self.recording.tool_version,
            world=world,
            readings=(*self.recording.readings, *self.partial.readings),
            advertised=(advertised(fact, world.backend) or "") if fact else "",
            port=self.listener.port if self.listener else 0,
        )

    def _answer(self, question: Json) -> Json:
        return self.watch.answer(question) if self.watch else {}

    def _not_met(self, failed: NotMet) -> None:
        self.group = failed.group
        node_reports = self.roll_call.node_reports
        here = {rank: node_reports[agent] for rank, agent in ranked(node_reports).items()}
        own = 0
        if not here:  # not the head, so not node rank 0
            own = 1 if self.place.node_rank is None else self.place.node_rank
        here = here or {own: self._node_report()}
        world = world_of(here, self.place.nnodes, self.place.expected_hosts, self.place.launcher)
        readings = at_node(self.recording.readings, own)
        self.recording = self.recording.model_copy(update={"world": world, "readings": readings})
        untested = [check for check in (*self.plan.at(Where.NODES), *self.rank_checks()) if check.id != ROLL_CALL]
        self.partial.leave_out(untested, "the nodes did not meet")
        names = {check.id for check in untested}
        kept = [reading for reading in self.partial.readings if reading.check not in names]  # without torch's import
        self.partial.readings[:] = at_node(kept, own)
        self.note_roll_call(failed.fact, own)

    # --- the head -------------------------------------------------------------------------------

    def dismiss(self, recording: Recording, report: Report) -> None:
        """Send the report from the head to all other nodes, which then end."""
        if self.group is not None and self.group.is_head:
            self.group.farewell(
                {
                    "do": "end",
                    "head": host(recording, 0),
                    "recording": recording.model_dump(mode="json"),
                    "report": report.model_dump(mode="json"),
                }
            )

    # --- the others -----------------------------------------------------------------------------

    def _follow(self, group: AgentGroup) -> None:
        begin = group.begin
        assert begin is not None
        heads = {name: value for name, value in begin if name in Recording.model_fields}
        readings = at_node(self.recording.readings, group.my_rank)
        self.recording = self.recording.model_copy(update={**heads, "readings": readings})
        self.partial.readings[:] = at_node(self.partial.readings, group.my_rank)
        self.begin(group, begin)
        self.note_roll_call(self.roll_call.met_fact(group), group.my_rank)
        assert self.watch is not None
        self.watch.start()
        session, keep = self.session, self.partial.keep
        run = session.run_of(self.recording, group.until, group.my_rank)
        node_ranks = NodeRanks(run, session.run_folder, session.server, self.roll_call.way, keep_partial=keep)
        follower = FollowerAgent(group, node_ranks, self.known, self.probe_between, self.partial)
        self._take_report(follower.run())

    def _take_report(self, order: dict[str, Json]) -> None:
        self.recording, self.report = order["recording"], order["report"]
        self.spoken_by = order["head"]

    # --- on every node --------------------------------------------------------------------------

    def begin(self, group: AgentGroup, begin: Begin) -> None:
        """Start the run after the check-in: record who takes part, and until when."""
        self.request.starter.met()
        group.began_at = time.monotonic()
        beyond_s = _LONGEST_BEYOND_BUDGET_S - (_HEAD_DECIDES_S if group.is_head else 0.0)
        group.until = group.began_at + longest_s(begin.options) + beyond_s
        assert self.listener is not None
        self.listener.admit(begin.secret)
        self._contacts = {contact.node: contact for contact in begin.contacts}
        if self.roll_call.way is not None:  # the address where this node found the head works
            met = {"met_at": self.roll_call.way[0]}
            self._contacts[0] = self._contacts[0].model_copy(update=met)
        self.watch = silence_watch.Watch(group, self._contacts, begin.secret)

    def probe_between(self, checks: Sequence[Check]) -> list[Reading]:
        """Run checks between nodes from this node and return its readings."""
        group = self.group
        assert group is not None
        begin = group.begin
        assert begin is not None
        contacts = [self._contacts[node] for node in neighbors(group.my_rank, len(self._contacts))]
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
        """Record the result of this node's check-in."""
        self.partial.readings.append(fact.collected(ROLL_CALL, node))

    def unfinished(self, why: str) -> None:
        """Make the verdict unsure for this reason, unless an error was found."""
        own = 0 if self.group is None else max(self.group.my_rank, 0)
        reading = Reading(check=ROLL_CALL, status=Status.FAILED, node=own, reason=why)
        self.partial.readings.append(reading)

    def _broken_off(self, why: str) -> None:
        """Record that this node did not see the end of the run, which is therefore never healthy."""
        self.partial.fail_unread(self.rank_checks(), why)
        self.unfinished(why)

    def _note_gone(self, gone: Lost | Left) -> None:
        if isinstance(gone, Left):
            self.partial.readings.append(silence_watch.goodbye(gone.node, gone.why))
            if gone.why == "interrupted":
                super().interrupted()
            else:
                self._broken_off(f"{host(self.recording, gone.node)} left before the end")
            return
        if self.watch is not None:
            self.partial.readings.extend(self.watch.about(gone.nodes))
        if self.group is None or self.group.is_head:
            self.unfinished(f"no word of {hosts(self.recording, gone.nodes)} to the end")
        else:
            # This node saw only its own ranks in the trial, so the trial proves nothing about any rank.
            aside = {"outcome": "interrupted", "lost_nodes": gone.nodes}
            self.partial.trials[:] = [
                trial if trial.outcome == "finished" else trial.model_copy(update=aside)
                for trial in self.partial.trials
            ]
            self._broken_off("the head was lost before it had reported")

    def interrupted(self) -> None:
        """Record that this node's user or scheduler ended it."""
        if self.group is None and self.roll_call.shown:
            reason = interrupted_after(time.monotonic() - self.roll_call.began, self.roll_call.shown)
            self.partial.readings.append(Reading(check=ROLL_CALL, status=Status.SKIPPED, reason=reason))
        super().interrupted()
        self.leave("interrupted")

    def failed(self, why: str, trace: str) -> None:
        """Record an internal error: checks without a reading have failed, and the head gets the reason."""
        super().failed(why, trace)
        self.leave(why)

    def leave(self, why: str) -> None:
        """Notify the head that this node leaves before the end; the head passes it on with its report."""
        self.group = self.group or self.roll_call.present()
        if self.group is not None and not self.group.is_head:
            self.group.leave(why)


# --- the head, once all have met ---------------------------------------------------------------------


def decide(node: ManyNodes, group: AgentGroup) -> None:
    """Run everything on all nodes that the plan and the findings so far allow.

    The readings of all nodes go into the recording of this node. Raises Lost, Left, StoreLost and Unreadable.
    """
    begin = _begin(node, group)
    group.begin = begin
    node.begin(group, begin)
    group.order({"do": "begin", "begin": begin.model_dump(mode="json")})
    node.note_roll_call(node.roll_call.met_fact(group), 0)
    run = node.session.run_of(node.recording, time.monotonic() + begin.options.budget_s)
    _probe(node, group, "between", [check for check in node.plan.at(Where.NODES) if check.id != ROLL_CALL])
    agent = node.session.agent(run, node.roll_call.control, group)
    _isolate(node, agent)
    _run_ranks(node, group, agent)
    repeats_s = repeat(node.plan.checks, agent if _is_whole(node, group) else None, node.so_far(), node.partial)
    run = replace(run, until=run.until + repeats_s)
    afterwards = list(node.plan.at(Where.AFTERWARDS))
    if not node.partial.trials:
        afterwards = _leave_out(node, afterwards, "no ranks ran, after which it looks")
    if _is_lost(group):
        afterwards = _leave_out(node, afterwards, "a node fell silent")
    _probe(node, group, "afterwards", afterwards)
    recording, prover = node.so_far(), agent if _is_whole(node, group) else None
    prove(recording, diagnose(recording).findings, run, prover, node.partial.experiments)
    run_alone(node.plan.checks, recording, run, prover, node.partial)
    if group.unreadable:
        node.unfinished(f"{hosts(node.recording, sorted(group.unreadable))} sent {JUNK}")
    group.check()


def _begin(node: ManyNodes, group: AgentGroup) -> Begin:
    node_reports = {rank: node.roll_call.node_reports[agent] for rank, agent in group.ids.items()}
    place = node.place
    world = world_of(node_reports, place.nnodes, place.expected_hosts, place.launcher)
    node.recording = node.recording.model_copy(update={"world": world, "readings": ()})
    node.partial.readings[:] = [
        reading for rank, report in node_reports.items() for reading in at_node(report.readings, rank)
    ]
    return Begin(
        **dict(node.recording),
        secret=secrets.token_hex(16),  # listeners of this run recognize each other by it
        ids=group.ids,
        contacts=other_networks.contacts(node_reports),
        checks=tuple(check.id for check in node.plan.checks),
    )


def _probe(node: ManyNodes, group: AgentGroup, when: str, checks: Sequence[Check]) -> None:
    """Run checks of the agents on all nodes; the other nodes send their readings with the key ``when``."""
    if not checks:
        return
    started = time.monotonic()
    group.order({"do": "probe", "when": when, "checks": [check.id for check in checks]})
    own = node.probe_between(checks)
    left_s = started + max(check.deadline_s for check in checks) - time.monotonic()
    handed_in = group.gather(when, max(left_s, 0.0) + HAND_IN_S, messages.readings)
    group.require_presence()
    node.partial.readings.extend(own)
    for rank in group.others:
        if rank in handed_in:
            node.partial.readings.extend(handed_in[rank])
        elif rank not in group.silent():  # a silent node has its own finding
            node.partial.readings.extend(
                Reading(check=check.id, status=Status.TIMED_OUT, node=rank, reason="the node handed nothing in")
                for check in checks
            )


def _is_lost(group: AgentGroup) -> bool:
    """Return True if a node does not respond, or did not at some time."""
    return bool(group.lost or group.silent())


def _is_whole(node: ManyNodes, group: AgentGroup) -> bool:
    """Return True if ranks of all nodes can meet."""
    has_lost = _is_lost(group) or any(trial.lost_nodes for trial in node.partial.trials)
    return node.roll_call.control is not None and not has_lost


def _isolate(node: ManyNodes, agent: Agent) -> None:
    checks = [check for check in node.plan.checks if check.id == ISOLATION]
    if refused := nccl_without_gpu(node.so_far()):
        checks = _leave_out(node, checks, refused)
    if checks:
        node.request.progress(ISOLATION)
        isolate(agent, leaves_of(node.recording))


def _run_ranks(node: ManyNodes, group: AgentGroup, agent: Agent) -> None:
    checks = allowed(node, [check for check in node.rank_checks() if check.id != ISOLATION])
    if refused := nccl_without_gpu(node.so_far()):
        checks = _leave_out(node, checks, refused)
    if _is_lost(group):
        checks = _leave_out(node, checks, "a node fell silent")
    if not checks:
        return
    launcher = [check for check in checks if check.where is Where.LAUNCHER]
    if launcher:
        agent.run_under_torchrun(launcher)
    ranks = [check for check in checks if check.where is Where.RANK]
    if any(trial.lost_nodes for trial in node.partial.trials) or group.silent():
        ranks = _leave_out(node, ranks, "no message from a node")
    agent.run_checks(ranks)


def allowed(node: NodeRun, checks: list[Check]) -> list[Check]:
    """Return the rank checks that are worth running after the findings about the connections between nodes."""
    seen = node.so_far()
    errors = [finding.code for finding in diagnose(seen).findings if finding.is_certain_error]
    ranks_do = {code: _RANKS_DO.get(code) for code in errors}
    effects = {code: effect(seen) if callable(effect) else effect for code, effect in ranks_do.items()}
    for code in (code for code, effect in effects.items() if effect == "stop"):
        return _leave_out(node, checks, f"{code} stands between the nodes: the ranks would hang or fail")
    for code in (code for code, effect in effects.items() if effect == "slow"):  # connectivity measured how slow
        return _leave_out(node, checks, f"{code} makes every step several times longer", but=(PROCESS_GROUP,))
    return checks


def _leave_out(node: NodeRun, checks: Sequence[Check], reason: str, but: Container[str] = ()) -> list[Check]:
    """Record that the checks are not run, except the checks in ``but``, which are returned."""
    node.partial.leave_out((check for check in checks if check.id not in but), reason)
    return [check for check in checks if check.id in but]
