"""A run over several nodes, on one of them: roll call, what is between the nodes, trials, one report.

The head decides and judges; the others do as it says and end with its report. A node that loses the
head, or never found it, ends with what it saw itself.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddp_doctor.checks.interfaces import InterfacesFact
from ddp_doctor.checks.roll_call.facts import RollCallFact
from ddp_doctor.engine.between_nodes import Surroundings, command_elsewhere, slows_ranks, stops_ranks
from ddp_doctor.engine.plan import Plan
from ddp_doctor.knowledge.deadlines import HAND_IN_S
from ddp_doctor.launch import border, job, leash, roll_call, silence
from ddp_doctor.launch.cards import Begin, Card, Contact, at_node, ranked, world_of
from ddp_doctor.launch.company import Company, Left, Lost
from ddp_doctor.launch.courier import HEAD, StoreLost
from ddp_doctor.launch.follower import Follower
from ddp_doctor.launch.parcels import JUNK, Unreadable
from ddp_doctor.launch.place import Place
from ddp_doctor.launch.roll_call import NotMet, RollCall
from ddp_doctor.launch.session import Session
from ddp_doctor.model.base import Json
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Status, Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import NotRun, Recording, World
from ddp_doctor.model.report import Report
from ddp_doctor.parse.interface_facts import advertised
from ddp_doctor.phrases.nodes import host, in_words
from ddp_doctor.sources.sockets import Listener

_ROLL_CALL = "roll_call"
#: What is still run where the nodes are slow to one another: whether the ranks meet. How slow, reach has said.
_MEETING = ("process_group",)
#: A head that is still heard, and has ordered nothing to an end for this long after the budget, is lost.
_LONGEST_BEYOND_BUDGET_S = 240.0
#: So much earlier the head gives up nodes that are still heard and hand nothing in.
_HEAD_DECIDES_S = 60.0
Judge = Callable[[Recording], Report]


@dataclass
class ManyNodes:
    """One node's part of a run. ``recording`` holds its own readings when it begins."""

    session: Session
    place: Place
    plan: Plan
    recording: Recording
    judge: Judge
    join_timeout_s: float
    announce: Callable[[str], None]  # told once what is to be typed on the other hosts
    known: Mapping[str, Check]  # all checks there are, by id: the head's plan is every node's
    of_ranks: Callable[[], Sequence[Reading]] = tuple  # what this node's other ranks told meanwhile
    calling: RollCall = field(init=False)
    company: Company | None = None
    report: Report | None = None  # the head's, on the others
    spoken_by: str | None = None  # the head's name, on the others
    _watch: silence.Watch | None = None
    _contacts: dict[int, Contact] = field(default_factory=dict)
    _listener: Listener | None = None

    def __post_init__(self) -> None:
        self.calling = RollCall(
            server=self.session.server,
            scratch=self.session.scratch,
            place=self.place,
            run_id=self.recording.run_id,
            until=time.monotonic() + self.join_timeout_s,
            tell=self.session.progress,
            not_started=leash.not_started,
            job=job.job(self.place.launcher, self.session.env),
        )

    def run(self) -> None:
        """To the end, whatever comes; the session's readings and trials are filled, too."""
        self._listener = Listener(self._answer)
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
        if self._listener is not None:
            self._listener.stop()
        self.calling.close()

    # --- meeting --------------------------------------------------------------------------------

    def _meet_and_work(self) -> None:
        if not self.session.torch_is_imported(self._rank_checks()):
            return
        self.session.readings.extend(self.of_ranks())
        self.calling.until = time.monotonic() + self.join_timeout_s
        card = self._card()
        with leash.roll_call():
            self.company = company = self.calling.hold(card)
        if company.ended is not None:
            company.hand_in("bye", value=True)
            company.courier.flush()
            self._take_report(company.ended)
        elif company.is_head:
            self._lead(company, card)
        else:
            self._follow(company, card)

    def _card(self) -> Card:
        world = self.recording.world or World()
        fact = self.recording.first(InterfacesFact)
        return Card(
            hostname=world.nodes[0].hostname,
            nnodes=self.place.nnodes,
            claimed_rank=self.place.node_rank,
            order=self.place.order,
            version=self.recording.tool_version,
            world=world,
            readings=(*self.recording.readings, *self.session.readings),
            advertised=(advertised(fact, world.backend) or "") if fact else "",
            port=self._listener.port if self._listener else 0,
        )

    def _answer(self, question: Json) -> Json:
        return self._watch.answer(question) if self._watch else {}

    def _not_met(self, failed: NotMet) -> None:
        self.company = failed.company
        cards = self.calling.cards
        here = {rank: cards[one] for rank, one in ranked(cards).items()}
        own = 0 if here else self._likely_rank()
        here = here or {own: self._card()}
        world = world_of(here, self.place.nnodes, self.place.expected_hosts, self.place.launcher)
        readings = at_node(self.recording.readings, own)
        self.recording = self.recording.model_copy(update={"world": world, "readings": readings})
        untested = [check.id for check in (*self._between(), *self._rank_checks()) if check.id != _ROLL_CALL]
        self.session.left_out.extend((name, "the nodes did not meet") for name in untested)
        kept = [
            one for one in self.session.readings if one.check not in untested
        ]  # torch's import is no meeting
        self.session.readings[:] = at_node(kept, own)
        self._read(failed.fact, own)

    def _likely_rank(self) -> int:
        """Of a node that met nobody and was given no rank: it is not the head, so it is not node rank 0."""
        return 1 if self.place.node_rank is None else self.place.node_rank

    def _read(self, fact: RollCallFact, node: int) -> None:
        reading = Reading(check=_ROLL_CALL, status=Status.COLLECTED, node=node, fact=fact.recorded())
        self.session.readings.append(reading)

    # --- the head -------------------------------------------------------------------------------

    def _lead(self, company: Company, card: Card) -> None:
        begin = self._begin(company)
        company.begin = begin
        self._know(company, begin)
        company.order({"do": "begin", "begin": begin.model_dump(mode="json")})
        self._read(self.calling.met_fact(card, company), 0)
        until = time.monotonic() + begin.options.budget_s
        self._look_between(company)
        self._run_ranks(company, until)
        if company.unreadable:
            who = in_words([begin.world.hostname(one) for one in sorted(company.unreadable)])
            self._unfinished(f"{who} sent {JUNK}")
        company.check()

    def _begin(self, company: Company) -> Begin:
        cards = {rank: self.calling.cards[one] for rank, one in company.ids.items()}
        world = world_of(cards, self.place.nnodes, self.place.expected_hosts, self.place.launcher)
        self.recording = self.recording.model_copy(update={"world": world, "readings": ()})
        self.session.readings[:] = [
            reading for rank, card in cards.items() for reading in at_node(card.readings, rank)
        ]
        return Begin(
            run_id=self.recording.run_id,
            started_at=self.recording.started_at,
            secret=roll_call.secret(),
            world=world,
            ids=company.ids,
            contacts=tuple(
                Contact(
                    node=rank,
                    hostname=one.hostname,
                    port=one.port,
                    advertised=one.advertised,
                    met_at=one.met_at,
                )
                for rank, one in cards.items()
            ),
            options=self.recording.options,
            checks=tuple(check.id for check in self.plan.checks),
            not_run=self.plan.not_run,
        )

    def _look_between(self, company: Company) -> None:
        """Run the checks between nodes everywhere."""
        checks = [check for check in self._between() if check.id != _ROLL_CALL]
        if not checks:
            return
        started = time.monotonic()
        company.order({"do": "look", "checks": [check.id for check in checks]})
        mine = self._look_around(checks)
        left_s = started + max(check.deadline_s for check in checks) - time.monotonic()
        told = company.gather("look", max(left_s, 0.0) + HAND_IN_S, border.readings)
        company.require_presence()
        self.session.readings.extend(mine)
        for rank in company.others:
            if rank in told:
                self.session.readings.extend(told[rank])
            elif rank not in company.silent():  # silence is a finding of its own
                self._note_absent(checks, rank)

    def _note_absent(self, checks: Sequence[Check], rank: int) -> None:
        self.session.readings.extend(
            Reading(check=check.id, status=Status.TIMED_OUT, node=rank, reason="the node handed nothing in")
            for check in checks
        )

    def _allowed(self, checks: list[Check]) -> list[Check]:
        """Those of the ranks' checks that are worth their time after what was found between the nodes."""
        findings = self.judge(self.so_far()).findings
        for one in filter(stops_ranks, findings):
            return self._leave_out(checks, [], f"{one.code} stands between the nodes: the ranks would hang")
        for one in filter(slows_ranks, findings):
            return self._leave_out(checks, _MEETING, f"{one.code} makes every step several times longer")
        return checks

    def _leave_out(self, checks: list[Check], kept: Sequence[str], reason: str) -> list[Check]:
        self.session.left_out.extend((check.id, reason) for check in checks if check.id not in kept)
        return [check for check in checks if check.id in kept]

    def _run_ranks(self, company: Company, until: float) -> None:
        assert self.recording.world is not None
        checks = self._allowed(self._rank_checks())
        if company.silent():
            checks = self._leave_out(checks, [], "a node fell silent")
        if not checks:
            return
        control = self.calling.control
        assert control is not None
        crew = self.session.crew(self.recording.world, 0, self.recording.options.level, control)
        agent = self.session.agent(crew, control, until, company)
        launcher = [check for check in checks if check.where is Where.LAUNCHER]
        if launcher:
            agent.run_under_torchrun(launcher)
        ranks = [check for check in checks if check.where is Where.RANK]
        if any(trial.lost_nodes for trial in self.session.trials) or company.silent():
            ranks = self._leave_out(ranks, [], "no word of a node")
        agent.run(ranks)

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

    def _follow(self, company: Company, card: Card) -> None:
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
        self._know(company, begin)
        self._read(self.calling.met_fact(card, company), company.my_rank)
        assert self._watch is not None
        self._watch.start()
        way = self.calling.way
        crew = self.session.crew(begin.world, company.my_rank, begin.options.level, way)
        follower = Follower(
            company, crew, self.known, self._look_around, self.session.readings, self.session.trials
        )
        self._take_report(follower.run())

    def _take_report(self, order: dict[str, Json]) -> None:
        self.recording, self.report = order["recording"], order["report"]
        self.spoken_by = order["head"]

    # --- on every node --------------------------------------------------------------------------

    def _know(self, company: Company, begin: Begin) -> None:
        leash.met()
        company.began_at = time.monotonic()
        beyond_s = _LONGEST_BEYOND_BUDGET_S - (_HEAD_DECIDES_S if company.is_head else 0.0)
        company.until = company.began_at + begin.options.budget_s + beyond_s
        assert self._listener is not None
        self._listener.admit(begin.secret)
        self._contacts = {contact.node: contact for contact in begin.contacts}
        if self.calling.way is not None:  # the address at which this node found the head is one that works
            met = {"met_at": self.calling.way[0]}
            self._contacts[0] = self._contacts[0].model_copy(update=met)
        self._watch = silence.Watch(company, self._contacts, begin.secret)

    def _look_around(self, checks: Sequence[Check]) -> list[Reading]:
        company = self.company
        assert company is not None
        begin = company.begin
        assert begin is not None
        offset = 0.0 if company.is_head else company.courier.clock_offset_s(HEAD)
        here = Surroundings(company.my_rank, begin, self._contacts, self.session.env, offset)
        return here.look(checks, self.session.progress)

    def _broken_off(self, why: str) -> None:
        """A run that this node did not see to the end is never healthy, whatever was read before."""
        self.session.fail(self._rank_checks(), why, "")
        self._unfinished(why)

    def _unfinished(self, why: str) -> None:
        own = 0 if self.company is None else max(self.company.my_rank, 0)
        reading = Reading(check=_ROLL_CALL, status=Status.FAILED, node=own, reason=why)
        self.session.readings.append(reading)

    def _note_gone(self, gone: Lost | Left) -> None:
        if isinstance(gone, Left):
            self.session.readings.append(silence.goodbye(gone.node, gone.why))
            self.recording = self.recording.model_copy(update={"interrupted": gone.why == "interrupted"})
            if gone.why != "interrupted":
                self._broken_off(f"{host(self.recording, gone.node)} left before the end")
            return
        if self._watch is not None:
            self.session.readings.extend(self._watch.about(gone.nodes))
        if self.company is None or self.company.is_head:
            silent = [host(self.recording, node) for node in gone.nodes]
            self._unfinished(f"no word of {in_words(silent)} to the end")
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
        self.session.fail((*self._between(), *self._rank_checks()), why, trace)
        self.leave(why)

    def leave(self, why: str) -> None:
        """Tell the head that this node goes before the end; the head tells the others with its report."""
        self.company = self.company or self.calling.present()
        if self.company is not None and not self.company.is_head:
            self.company.leave(why)

    def so_far(self) -> Recording:
        """The recording with all that was read until now."""
        not_run = [NotRun(check=check, reason=reason) for check, reason in self.session.left_out]
        return self.recording.model_copy(
            update={
                "readings": (*self.recording.readings, *self.session.readings),
                "trials": tuple(self.session.trials),
                "not_run": (*self.recording.not_run, *not_run),
            }
        )

    def _between(self) -> tuple[Check, ...]:
        return self.plan.at(Where.NODES)

    def _rank_checks(self) -> list[Check]:
        return [check for check in self.plan.checks if check.where in (Where.LAUNCHER, Where.RANK)]
