"""The part of one node in a run: its processes, the code that all runs share, and a run of one node."""

import shutil
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_doctor.engine.collect import read_node
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.alone import run_alone
from ddp_doctor.engine.node_run.partial_recording import PartialRecording, interrupted_after, note_interruption
from ddp_doctor.engine.plan import Plan
from ddp_doctor.engine.prove.experiments import prove
from ddp_doctor.engine.repeats import repeat
from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.check import ENV_VARS, PROCESS_GROUP, Check
from ddp_doctor.model.choices import Status, Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.ranks import control_store, folders
from ddp_doctor.ranks.control_store import Control
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.helper import HelperLost
from ddp_doctor.ranks.node_ranks import NodeRanks, Run
from ddp_doctor.ranks.torchrun.launch import end_all
from ddp_doctor.starters.request import RunRequest

if TYPE_CHECKING:  # not imported on a single node
    from ddp_doctor.agents.agent_group import AgentGroup


@dataclass
class Session:
    """The processes of one run. Use as a context manager; it ends and removes everything on exit."""

    request: RunRequest
    partial: PartialRecording = field(default_factory=PartialRecording)
    run_folder: Path = field(init=False)
    server: ForkServer = field(init=False)
    can_fork: bool = field(default=False, init=False)  # whether torch was imported
    _control: Control | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.run_folder = folders.make_run_folder()
        self.server = ForkServer(self.run_folder, dict(self.request.env))

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self.run_folder)  # processes that the agent could not end because of a signal
        if self._control is not None:
            self._control.stop()
        self.server.stop()
        shutil.rmtree(self.run_folder, ignore_errors=True)

    def warm_up(self, checks: Sequence[Check] | None = None) -> None:
        """Start importing torch in the forkserver, for all checks or these. Call from the main thread, first of all."""
        self.server.start(ddp=checks is None or any(check.group == "DDP" for check in checks))

    def torch_is_imported(self, checks: Sequence[Check]) -> bool:
        """Wait until ranks can be forked. If torch cannot be imported, the checks have failed."""
        self.request.progress("importing torch")
        began = time.monotonic()
        try:
            fact = self.server.wait_ready(deadlines.IMPORT_S)
        except HelperLost as lost:
            self.partial.fail_unread(checks, str(lost))
            return False
        except BaseException:
            why = f"torch was being imported{self.server.import_stands()}"
            reason = interrupted_after(time.monotonic() - began, why)
            self.partial.readings.extend(
                Reading(check=check.id, status=Status.SKIPPED, reason=reason) for check in checks[:1]
            )
            raise
        self.can_fork = fact.error is None and fact.stuck_at is None
        problem = None if self.can_fork else "torch cannot be imported"
        if fact.moving:
            problem = f"torch was still being imported after {fact.import_s:.0f} s: this machine is slow or busy"
        for check in checks if problem else checks[:1]:
            self.partial.readings.append(
                Reading(
                    check=check.id if problem else PROCESS_GROUP,
                    status=Status.FAILED if problem else Status.COLLECTED,
                    fact=fact.recorded(),
                    reason=problem,
                )
            )
        return self.can_fork

    def start_control(self) -> None:
        """Start the store where the ranks of a single-node run meet."""
        if self._control is None:
            self._control = control_store.start(self.server, self.run_folder, *self.request.endpoint)

    def run_of(self, recording: Recording, until: float, node: int = 0) -> Run:
        """Return the run in this recording's world, with its options; the user's model is the one given to this node.

        The mesh also is the one given to this node, if any: a difference from the head's mesh is a finding.
        """
        assert recording.world is not None
        own, mesh = self.request.options, self.request.options.mesh or recording.options.mesh
        options = recording.options.model_copy(update={"model": own.model, "mesh": mesh})
        return Run(options, self.request.env, self.request.progress, recording.world, node, until)

    def agent(self, run: Run, control: Control | None = None, group: "AgentGroup | None" = None) -> Agent:
        """Return the agent that decides, with the given control store or the store of the run."""
        control = control or self._control
        store = (control.host, control.port) if control is not None else None
        node_ranks = NodeRanks(run, self.run_folder, self.server, store, control, self.partial.keep)
        return Agent(node_ranks, self.partial, group)


@dataclass
class NodeRun:
    """The part of one node in a run. ``recording`` starts with the node's own readings."""

    session: Session
    plan: Plan
    recording: Recording
    known: Mapping[str, Check]  # all checks by id: all nodes run the head's plan
    report: Report | None = None  # the head's report, on the other nodes
    spoken_by: str | None = None  # the head's name, on the other nodes
    started: float = field(default_factory=time.monotonic)

    @property
    def request(self) -> RunRequest:
        """The request that started this node."""
        return self.session.request

    @property
    def partial(self) -> PartialRecording:
        """The readings and trials recorded since the start."""
        return self.session.partial

    @abstractmethod
    def run(self) -> None:
        """Run the checks between nodes and the checks on ranks."""

    def interrupted(self) -> None:
        """Record that this node's user or scheduler ended it."""
        self.recording = self.recording.model_copy(update={"interrupted": True})
        read = {reading.check for reading in self.recording.readings}
        unread = [check for check in self.plan.checks if check.id not in read]
        note_interruption(self.partial, unread, self.recording.not_run)

    def failed(self, why: str, trace: str) -> None:
        """Record an internal error: the checks without a reading have failed."""
        between, afterwards = self.plan.at(Where.NODES), self.plan.at(Where.AFTERWARDS)
        self.partial.fail((*between, *self.rank_checks(), *afterwards), why, trace)

    def finish(self) -> Recording:
        """Return the complete recording after the end of the run."""
        return self.so_far().model_copy(update={"duration_s": time.monotonic() - self.started})

    def dismiss(self, recording: Recording, report: Report) -> None:
        """Send the report to the other nodes."""

    def close(self) -> None:
        """Close what this node still holds open, whenever it was interrupted."""

    def so_far(self) -> Recording:
        """Return the recording with everything read so far."""
        return self.partial.added_to(self.recording)

    def of_ranks(self) -> None:
        """Add the settings that the launcher's other ranks on this node report."""
        if any(check.id == ENV_VARS for check in self.plan.checks):
            self.partial.readings.extend(self.request.of_ranks())

    def rank_checks(self) -> list[Check]:
        """Return the plan's checks that need ranks, torchrun's first."""
        return [check for check in self.plan.checks if check.where.needs_ranks]


@dataclass
class OneNode(NodeRun):
    """A run of one node: its ranks, the checks after them, and the fixes that can be tested on it."""

    def run(self) -> None:
        """Run the checks on ranks and the checks after them, then test fixes."""
        world, budget_s = self.recording.world, self.request.options.budget_s
        afterwards = self.plan.at(Where.AFTERWARDS)
        if not self.rank_checks() or world is None:
            return
        host = self.recording.first(Host)
        if host is not None and host.loopback_problem is not None:
            why = f"ranks of one node cannot meet: {host.loopback_problem}"
            self.partial.leave_out((*self.rank_checks(), *afterwards), why)
            return
        run = self.session.run_of(self.recording, time.monotonic() + budget_s)
        self._run_ranks(run)
        agent = self.session.agent(run) if self.session.can_fork else None
        repeats_s = repeat(self.plan.checks, agent, self.so_far(), self.partial)
        self.partial.readings.extend(read_node(afterwards, world, self.request, self.partial.readings))
        recording, run = self.so_far(), replace(run, until=self.started + budget_s + repeats_s)
        prove(recording, diagnose(recording).findings, run, agent, self.partial.experiments)
        run_alone(self.plan.checks, recording, run, agent, self.partial)

    def _run_ranks(self, run: Run) -> None:
        launcher, ranks = self.plan.at(Where.LAUNCHER), self.plan.at(Where.RANK, Where.GROUPS)

        def run_forked() -> None:
            if ranks and self.session.torch_is_imported(ranks):
                self.session.start_control()
                self.session.agent(run).run_checks(self.plan.at(Where.RANK))

        if launcher:  # while the forkserver imports torch
            self.session.agent(run).run_under_torchrun(launcher, meanwhile=run_forked)
        else:
            run_forked()

    def finish(self) -> Recording:
        """Return the complete recording; ranks that start slowly are queried as late as possible."""
        self.of_ranks()
        return super().finish()
