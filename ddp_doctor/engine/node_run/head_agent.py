"""The head's part of a run over several nodes, once all have met: begin, probe between them, run the ranks."""

import secrets
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddp_doctor.agents import messages
from ddp_doctor.agents.agent_group import AgentGroup
from ddp_doctor.agents.framing import JUNK
from ddp_doctor.agents.messages import Begin, at_node, world_of
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.engine.node_run import other_networks
from ddp_doctor.engine.node_run.node import NodeRun
from ddp_doctor.engine.prove.experiments import prove
from ddp_doctor.knowledge.deadlines import HAND_IN_S
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Severity, Status, Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.ranks.node_ranks import Run
from ddp_doctor.views.gpus import nccl_without_gpu
from ddp_doctor.wording.nodes import name_list

if TYPE_CHECKING:
    from ddp_doctor.engine.node_run.many_nodes import ManyNodes

ROLL_CALL = "roll_call"

#: The checks that still run where the nodes are slow to one another: whether the ranks meet. ``connectivity`` has
#: measured how slow they are.
_MEETING = ("process_group",)
#: What ranks would do beside an error of the rules that look before they start, by code.
_RANKS_DO = {rule.code: rule.ranks for check in CHECKS if check.stops_ranks for rule in check.rules}


@dataclass
class HeadAgent:
    """Decides what all nodes do. The readings of all go into its own node's recording."""

    node: "ManyNodes"
    group: AgentGroup

    def run(self) -> None:
        """All that the plan and the findings so far allow. Raises Lost, Left, StoreLost and Unreadable."""
        node, group = self.node, self.group
        begin = self._begin()
        group.begin = begin
        node.begin(group, begin)
        group.order({"do": "begin", "begin": begin.model_dump(mode="json")})
        node.note_roll_call(node.roll_call.met_fact(group), 0)
        run = node.session.run_of(node.recording, time.monotonic() + begin.options.budget_s)
        self._probe("between", [check for check in node.between() if check.id != ROLL_CALL])
        self._run_ranks(run)
        afterwards = list(node.afterwards())
        if not node.partial.trials:
            afterwards = _leave_out(node, afterwards, "no ranks ran, after which it looks")
        if group.silent():
            afterwards = _leave_out(node, afterwards, "a node fell silent")
        self._probe("afterwards", afterwards)
        recording, control, agent = node.so_far(), node.roll_call.control, None
        if control is not None and not group.silent() and not any(t.lost_nodes for t in recording.trials):
            agent = node.session.agent(run, control, group)
        prove(recording, diagnose(recording).findings, run, agent, node.partial.experiments)
        if group.unreadable:
            who = name_list([begin.world.hostname(rank) for rank in sorted(group.unreadable)])
            node.unfinished(f"{who} sent {JUNK}")
        group.check()

    def _begin(self) -> Begin:
        node, group = self.node, self.group
        node_reports = {rank: node.roll_call.node_reports[agent] for rank, agent in group.ids.items()}
        place = node.place
        world = world_of(node_reports, place.nnodes, place.expected_hosts, place.launcher)
        node.recording = node.recording.model_copy(update={"world": world, "readings": ()})
        node.partial.readings[:] = [
            reading for rank, report in node_reports.items() for reading in at_node(report.readings, rank)
        ]
        return Begin(
            run_id=node.recording.run_id,
            started_at=node.recording.started_at,
            secret=secrets.token_hex(16),  # by which the listeners of this run recognise each other
            world=world,
            ids=group.ids,
            contacts=other_networks.contacts(node_reports),
            options=node.recording.options,
            checks=tuple(check.id for check in node.plan.checks),
            not_run=node.plan.not_run,
        )

    def _probe(self, when: str, checks: Sequence[Check]) -> None:
        """Run checks of the agents on all nodes; ``when`` is the key under which the others hand in readings."""
        node, group = self.node, self.group
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
            elif rank not in group.silent():  # silence is a finding of its own
                node.partial.readings.extend(
                    Reading(check=check.id, status=Status.TIMED_OUT, node=rank, reason="the node handed nothing in")
                    for check in checks
                )

    def _run_ranks(self, run: Run) -> None:
        node, group = self.node, self.group
        checks = allowed(node, node.rank_checks())
        if refused := nccl_without_gpu(node.so_far()):
            checks = _leave_out(node, checks, refused)
        if group.silent():
            checks = _leave_out(node, checks, "a node fell silent")
        if not checks:
            return
        agent = node.session.agent(run, node.roll_call.control, group)
        launcher = [check for check in checks if check.where is Where.LAUNCHER]
        if launcher:
            agent.run_under_torchrun(launcher)
        ranks = [check for check in checks if check.where is Where.RANK]
        if any(trial.lost_nodes for trial in node.partial.trials) or group.silent():
            ranks = _leave_out(node, ranks, "no word of a node")
        agent.run_checks(ranks)


def allowed(node: NodeRun, checks: list[Check]) -> list[Check]:
    """Those of the ranks' checks that are worth their time after what was found between the nodes."""
    errors = [finding for finding in diagnose(node.so_far()).findings if finding.severity is Severity.ERROR]
    effects = {finding.code: _RANKS_DO.get(finding.code) for finding in errors}
    for code in (code for code, effect in effects.items() if effect == "stop"):
        return _leave_out(node, checks, f"{code} stands between the nodes: the ranks would hang")
    for code in (code for code, effect in effects.items() if effect == "slow"):
        return _leave_out(node, checks, f"{code} makes every step several times longer", but=_MEETING)
    return checks


def _leave_out(node: NodeRun, checks: Sequence[Check], reason: str, but: Container[str] = ()) -> list[Check]:
    """Note that the checks are not run, ``but`` for some; those that are left."""
    node.partial.leave_out((check for check in checks if check.id not in but), reason)
    return [check for check in checks if check.id in but]
