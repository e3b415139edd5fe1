"""One node's part of a run: what all runs share, and a run of one node alone."""

import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ddp_doctor.engine.collect import read_node
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.engine.node_run.partial_recording import PartialRecording, note_interruption
from ddp_doctor.engine.node_run.session import Session
from ddp_doctor.engine.plan import Plan
from ddp_doctor.engine.prove.experiments import prove
from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.check import ENV_VARS, Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.ranks.run import Run
from ddp_doctor.starters.request import RunRequest


@dataclass
class NodeRun:
    """One node's part of a run. ``recording`` holds the node's own readings when it begins."""

    session: Session
    plan: Plan
    recording: Recording
    known: Mapping[str, Check]  # all checks there are, by id: on several nodes the head's plan is every node's
    report: Report | None = None  # the head's, on the other nodes
    spoken_by: str | None = None  # the head's name, on the other nodes
    started: float = field(default_factory=time.monotonic)

    @property
    def request(self) -> RunRequest:
        """What this node was asked to do."""
        return self.session.request

    @property
    def partial(self) -> PartialRecording:
        """What was recorded since it began."""
        return self.session.partial

    def needs_torch(self) -> bool:
        """Whether torch is to be imported from the start."""
        return bool(self.rank_checks())

    @abstractmethod
    def run(self) -> None:
        """Run the checks between nodes and those on ranks."""

    def interrupted(self) -> None:
        """This node's user, or its scheduler, ended it."""
        self.recording = self.recording.model_copy(update={"interrupted": True})
        read = {reading.check for reading in self.recording.readings}
        unread = [check for check in self.plan.checks if check.id not in read]
        note_interruption(self.partial, unread, self.recording.not_run)

    def failed(self, why: str, trace: str) -> None:
        """The doctor failed itself here: the checks without a reading have failed."""
        self.partial.fail((*self.between(), *self.rank_checks(), *self.afterwards()), why, trace)

    def finish(self) -> Recording:
        """The whole recording, when all has ended."""
        return self.so_far().model_copy(update={"duration_s": time.monotonic() - self.started})

    def dismiss(self, recording: Recording, report: Report) -> None:
        """Give the report to the other nodes."""

    def close(self) -> None:
        """End what this node still holds open, whenever it was interrupted."""

    def so_far(self) -> Recording:
        """The recording with all that was read until now."""
        return self.partial.added_to(self.recording)

    def of_ranks(self) -> None:
        """Add what the launcher's other ranks on this node report of their settings."""
        if any(check.id == ENV_VARS for check in self.plan.checks):
            self.partial.readings.extend(self.request.of_ranks())

    def between(self) -> tuple[Check, ...]:
        """The plan's checks between nodes."""
        return self.plan.at(Where.NODES)

    def rank_checks(self) -> list[Check]:
        """The plan's checks on ranks, torchrun's first."""
        return list(self.plan.at(Where.LAUNCHER, Where.RANK))

    def afterwards(self) -> tuple[Check, ...]:
        """The plan's checks for when the ranks have ended."""
        return self.plan.at(Where.AFTERWARDS)


@dataclass
class OneNode(NodeRun):
    """This node's ranks, one more look at the node, and the remedies that can be tried here."""

    def run(self) -> None:
        """Run the checks on ranks and those that come after them, then try remedies."""
        world, budget_s = self.recording.world, self.request.options.budget_s
        if not self.rank_checks() or world is None:
            return
        host = self.recording.first(Host)
        if host is not None and host.loopback_problem is not None:
            why = f"ranks of one node cannot meet: {host.loopback_problem}"
            self.partial.leave_out((*self.rank_checks(), *self.afterwards()), why)
            return
        run = self.session.run_of(self.recording, time.monotonic() + budget_s)
        self._run_ranks(run)
        self.partial.readings.extend(read_node(self.afterwards(), world, self.request, self.partial.readings))
        agent = self.session.agent_alone(run) if self.session.can_fork else None
        recording, run = self.so_far(), replace(run, until=self.started + budget_s)
        prove(recording, diagnose(recording).findings, run, agent, self.partial.experiments)

    def _run_ranks(self, run: Run) -> None:
        launcher, ranks = self.plan.at(Where.LAUNCHER), self.plan.at(Where.RANK)

        def run_forked() -> None:
            if ranks and self.session.torch_is_imported(ranks):
                self.session.start_control()
                self.session.agent_alone(run).run_checks(ranks)

        if launcher:  # in the time that the forkserver needs to import torch
            self.session.agent_alone(run).run_under_torchrun(launcher, meanwhile=run_forked)
        else:
            run_forked()

    def finish(self) -> Recording:
        """The whole recording; ranks that start slowly are asked as late as possible."""
        self.of_ranks()
        return super().finish()
