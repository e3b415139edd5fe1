"""The head's part of a run over several nodes, once all have met: begin, look between them, run the ranks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_doctor.agents import roll_call, validation
from ddp_doctor.agents.agent_group import AgentGroup
from ddp_doctor.agents.framing import JUNK
from ddp_doctor.agents.messages import Begin, NodeReport, at_node, world_of
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.node_run import other_ways
from ddp_doctor.engine.node_run.node import ROLL_CALL, NodeRun
from ddp_doctor.engine.prove import prove
from ddp_doctor.knowledge.deadlines import HAND_IN_S
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Severity, Status, Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.wording.nodes import in_words

#: What is still run where the nodes are slow to one another: whether the ranks meet. How slow, reach has said.
_MEETING = ("process_group",)
#: What ranks would do beside an error of the rules that look before they start, by code.
_RANKS_DO = {rule.code: rule.ranks for check in CHECKS if check.stops_ranks for rule in check.rules}


@dataclass
class HeadAgent:
    """Decides what all nodes do. The readings of all are the session's."""

    part: NodeRun
    company: AgentGroup

    def run(self, card: NodeReport) -> None:
        """All that the plan and the findings so far allow. Raises Lost, Left, StoreLost and Unreadable."""
        part, company = self.part, self.company
        begin = self._begin()
        company.begin = begin
        part.know(company, begin)
        company.order({"do": "begin", "begin": begin.model_dump(mode="json")})
        part.read(part.calling.met_fact(card, company), 0)
        until = time.monotonic() + begin.options.budget_s
        self._look("look", [check for check in part.between() if check.id != ROLL_CALL])
        self._run_ranks(until)
        self._look("afterwards", self._worth_a_last_look())
        self._prove(until)
        if company.unreadable:
            who = in_words([begin.world.hostname(one) for one in sorted(company.unreadable)])
            part.unfinished(f"{who} sent {JUNK}")
        company.check()

    def _begin(self) -> Begin:
        part, company = self.part, self.company
        cards = {rank: part.calling.cards[one] for rank, one in company.ids.items()}
        world = world_of(cards, part.place.nnodes, part.place.expected_hosts, part.place.launcher)
        part.recording = part.recording.model_copy(update={"world": world, "readings": ()})
        part.session.readings[:] = [
            reading for rank, card in cards.items() for reading in at_node(card.readings, rank)
        ]
        return Begin(
            run_id=part.recording.run_id,
            started_at=part.recording.started_at,
            secret=roll_call.secret(),
            world=world,
            ids=company.ids,
            contacts=other_ways.contacts(cards),
            options=part.recording.options,
            checks=tuple(check.id for check in part.plan.checks),
            not_run=part.plan.not_run,
        )

    def _worth_a_last_look(self) -> list[Check]:
        """What is looked at when the ranks have ended; nothing where none ran, or a node is gone."""
        part, checks = self.part, list(self.part.afterwards())
        if not part.session.trials:
            return _leave_out(part, checks, [], "no ranks ran, after which it looks")
        if self.company.silent():
            return _leave_out(part, checks, [], "a node fell silent")
        return checks

    def _look(self, when: str, checks: Sequence[Check]) -> None:
        """Run checks of the agents everywhere; ``when`` is what the others hand their readings in as."""
        part, company = self.part, self.company
        if not checks:
            return
        started = time.monotonic()
        company.order({"do": "look", "when": when, "checks": [check.id for check in checks]})
        mine = part.look_around(checks)
        left_s = started + max(check.deadline_s for check in checks) - time.monotonic()
        told = company.gather(when, max(left_s, 0.0) + HAND_IN_S, validation.readings)
        company.require_presence()
        part.session.readings.extend(mine)
        for rank in company.others:
            if rank in told:
                part.session.readings.extend(told[rank])
            elif rank not in company.silent():  # silence is a finding of its own
                self._note_absent(checks, rank)

    def _note_absent(self, checks: Sequence[Check], rank: int) -> None:
        self.part.session.readings.extend(
            Reading(check=check.id, status=Status.TIMED_OUT, node=rank, reason="the node handed nothing in")
            for check in checks
        )

    def _run_ranks(self, until: float) -> None:
        part, company = self.part, self.company
        assert part.recording.world is not None
        checks = allowed(part, part.rank_checks())
        if company.silent():
            checks = _leave_out(part, checks, [], "a node fell silent")
        if not checks:
            return
        control = part.calling.control
        assert control is not None
        crew = part.session.crew(part.recording.world, 0, part.recording.options.level, control)
        agent = part.session.agent(crew, control, until, company)
        launcher = [check for check in checks if check.where is Where.LAUNCHER]
        if launcher:
            agent.run_under_torchrun(launcher)
        ranks = [check for check in checks if check.where is Where.RANK]
        if any(trial.lost_nodes for trial in part.session.trials) or company.silent():
            ranks = _leave_out(part, ranks, [], "no word of a node")
        agent.run(ranks)

    def _prove(self, until: float) -> None:
        """Try what the findings recommend, on the ranks of all nodes."""
        part, company = self.part, self.company
        recording, control = part.so_far(), part.calling.control
        assert recording.world is not None
        agent = None
        if control is not None and not company.silent() and not any(t.lost_nodes for t in recording.trials):
            crew = part.session.crew(recording.world, 0, recording.options.level, control)
            agent = part.session.agent(crew, control, until, company)
        findings = part.judge(recording).findings
        prove(recording, findings, part.session.env, agent, until, part.session.experiments)


def allowed(part: NodeRun, checks: list[Check]) -> list[Check]:
    """Those of the ranks' checks that are worth their time after what was found between the nodes."""
    findings = part.judge(part.so_far()).findings
    effects = {
        finding.code: _RANKS_DO.get(finding.code)
        for finding in findings
        if finding.severity is Severity.ERROR
    }
    for code in (code for code, effect in effects.items() if effect == "stop"):
        return _leave_out(part, checks, [], f"{code} stands between the nodes: the ranks would hang")
    for code in (code for code, effect in effects.items() if effect == "slow"):
        return _leave_out(part, checks, _MEETING, f"{code} makes every step several times longer")
    return checks


def _leave_out(part: NodeRun, checks: list[Check], kept: Sequence[str], reason: str) -> list[Check]:
    part.session.left_out.extend((check.id, reason) for check in checks if check.id not in kept)
    return [check for check in checks if check.id in kept]
