"""A run over several nodes, on one of them: roll call, what is between the nodes, trials, one report.

The head decides and judges; the others do as it says and end with its report. A node that loses the
head, or never found it, ends with what it saw itself.
"""

import time
from dataclasses import dataclass

from ddp_doctor.agents import lost_nodes
from ddp_doctor.agents.agent_group import AgentGroup, Left, Lost
from ddp_doctor.agents.follower_agent import Follower
from ddp_doctor.agents.framing import Unreadable
from ddp_doctor.agents.messages import NodeReport, at_node, ranked, world_of
from ddp_doctor.agents.roll_call import NotMet
from ddp_doctor.agents.store_client import StoreLost
from ddp_doctor.engine.node_run.between_nodes import command_elsewhere
from ddp_doctor.engine.node_run.head_agent import HeadAgent
from ddp_doctor.engine.node_run.node import ROLL_CALL, NodeRun
from ddp_doctor.facts.interfaces import InterfacesFact
from ddp_doctor.model.base import Json
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.report import Report
from ddp_doctor.sources.sockets import Listener
from ddp_doctor.starters import starter_pipe
from ddp_doctor.views.interfaces import advertised
from ddp_doctor.wording.nodes import host, in_words


@dataclass
class ManyNodes(NodeRun):
    """One node's part of a run, from the roll call to the report that all nodes print."""

    report: Report | None = None  # the head's, on the others
    spoken_by: str | None = None  # the head's name, on the others

    def run(self) -> None:
        """To the end, whatever comes; the session's readings and trials are filled, too."""
        self.listener = Listener(self._answer)
        self.calling.command = self._command()
        try:
            self._meet_and_work()
        except NotMet as failed:
            self._not_met(failed)
        except StoreLost as lost:
            self._broken_off(f"the control store broke off: {lost}")
        except Unreadable as junk:
            self._broken_off(str(junk))
            self.leave(str(junk))
        except (Lost, Left) as gone:
            self._note_gone(gone)

    def _command(self) -> str:
        """What starts the other agents; where no endpoint was given, this host is it and says so."""
        command = command_elsewhere(self.place, self.recording.first(InterfacesFact))
        if self.place.endpoint is None:
            self.announce(command)
        return command

    def close(self) -> None:
        """End what this node still holds open, whenever it was interrupted."""
        if self.listener is not None:
            self.listener.stop()
        self.calling.close()

    # --- meeting --------------------------------------------------------------------------------

    def _meet_and_work(self) -> None:
        if not self.session.torch_is_imported(self.rank_checks()):
            return
        self.session.readings.extend(self.of_ranks())
        self.calling.until = time.monotonic() + self.join_timeout_s
        card = self._card()
        with starter_pipe.roll_call():
            self.company = company = self.calling.hold(card)
        if company.ended is not None:
            company.hand_in("bye", value=True)
            company.courier.flush()
            self._take_report(company.ended)
        elif company.is_head:
            HeadAgent(self, company).run(card)
        else:
            self._follow(company, card)

    def _card(self) -> NodeReport:
        world = self.recording.world or World()
        fact = self.recording.first(InterfacesFact)
        return NodeReport(
            hostname=world.nodes[0].hostname,
            nnodes=self.place.nnodes,
            claimed_rank=self.place.node_rank,
            order=self.place.order,
            version=self.recording.tool_version,
            world=world,
            readings=(*self.recording.readings, *self.session.readings),
            advertised=(advertised(fact, world.backend) or "") if fact else "",
            port=self.listener.port if self.listener else 0,
        )

    def _answer(self, question: Json) -> Json:
        return self.watch.answer(question) if self.watch else {}

    def _not_met(self, failed: NotMet) -> None:
        self.company = failed.company
        cards = self.calling.cards
        here = {rank: cards[one] for rank, one in ranked(cards).items()}
        own = 0 if here else self._likely_rank()
        here = here or {own: self._card()}
        world = world_of(here, self.place.nnodes, self.place.expected_hosts, self.place.launcher)
        readings = at_node(self.recording.readings, own)
        self.recording = self.recording.model_copy(update={"world": world, "readings": readings})
        untested = [check.id for check in (*self.between(), *self.rank_checks()) if check.id != ROLL_CALL]
        self.session.left_out.extend((name, "the nodes did not meet") for name in untested)
        kept = [
            one for one in self.session.readings if one.check not in untested
        ]  # torch's import is no meeting
        self.session.readings[:] = at_node(kept, own)
        self.read(failed.fact, own)

    def _likely_rank(self) -> int:
        """Of a node that met nobody and was given no rank: it is not the head, so it is not node rank 0."""
        return 1 if self.place.node_rank is None else self.place.node_rank

    # --- the head -------------------------------------------------------------------------------

    def dismiss(self, recording: Recording, report: Report) -> None:
        """Head: hand the report to all others, and let them go."""
        if self.company is not None and self.company.is_head:
            self.company.farewell(
                {
                    "do": "end",
                    "head": recording.world.hostname(0) if recording.world else "",
                    "recording": recording.model_dump(mode="json"),
                    "report": report.model_dump(mode="json"),
                }
            )

    # --- the others -----------------------------------------------------------------------------

    def _follow(self, company: AgentGroup, card: NodeReport) -> None:
        begin = company.begin
        assert begin is not None
        self.recording = self.recording.model_copy(
            update={
                "run_id": begin.run_id,
                "started_at": begin.started_at,
                "world": begin.world,
                "options": begin.options,
                "not_run": begin.not_run,
                "readings": at_node(self.recording.readings, company.my_rank),
            }
        )
        self.session.readings[:] = at_node(self.session.readings, company.my_rank)
        self.know(company, begin)
        self.read(self.calling.met_fact(card, company), company.my_rank)
        assert self.watch is not None
        self.watch.start()
        way = self.calling.way
        crew = self.session.crew(begin.world, company.my_rank, begin.options.level, way)
        follower = Follower(
            company, crew, self.known, self.look_around, self.session.readings, self.session.trials
        )
        self._take_report(follower.run())

    def _take_report(self, order: dict[str, Json]) -> None:
        self.recording, self.report = order["recording"], order["report"]
        self.spoken_by = order["head"]

    # --- on every node --------------------------------------------------------------------------

    def _broken_off(self, why: str) -> None:
        """A run that this node did not see to the end is never healthy, whatever was read before."""
        self.session.leave_unread(self.rank_checks(), why)
        self.unfinished(why)

    def _note_gone(self, gone: Lost | Left) -> None:
        if isinstance(gone, Left):
            self.session.readings.append(lost_nodes.goodbye(gone.node, gone.why))
            self.recording = self.recording.model_copy(update={"interrupted": gone.why == "interrupted"})
            if gone.why != "interrupted":
                self._broken_off(f"{host(self.recording, gone.node)} left before the end")
            return
        if self.watch is not None:
            self.session.readings.extend(self.watch.about(gone.nodes))
        if self.company is None or self.company.is_head:
            silent = [host(self.recording, node) for node in gone.nodes]
            self.unfinished(f"no word of {in_words(silent)} to the end")
        else:
            self._set_own_part_aside(gone.nodes)
            self._broken_off("the head was lost before it had reported")

    def _set_own_part_aside(self, lost: tuple[int, ...]) -> None:
        """Of a trial that this node saw only its own ranks of, nobody can be judged."""
        aside = {"outcome": "interrupted", "lost_nodes": lost}
        self.session.trials[:] = [
            one if one.outcome == "finished" else one.model_copy(update=aside) for one in self.session.trials
        ]

    def interrupted(self) -> None:
        """This node's user, or its scheduler, ended it."""
        self.recording = self.recording.model_copy(update={"interrupted": True})
        self.leave("interrupted")

    def failed(self, why: str, trace: str) -> None:
        """The doctor failed itself here: what was not read yet has failed, and the head is told."""
        self.session.fail((*self.between(), *self.rank_checks()), why, trace)
        self.leave(why)

    def leave(self, why: str) -> None:
        """Tell the head that this node goes before the end; the head tells the others with its report."""
        self.company = self.company or self.calling.present()
        if self.company is not None and not self.company.is_head:
            self.company.leave(why)
