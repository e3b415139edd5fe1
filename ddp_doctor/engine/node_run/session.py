"""One run on one node, from the first fork to the last kill; collects, judges nothing."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.partial_recording import PartialRecording, interrupted_after
from ddp_doctor.facts.collectives import TorchImport
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.check import PROCESS_GROUP, Check
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording
from ddp_doctor.ranks import control_store, folders
from ddp_doctor.ranks.control_store import Control
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.node_ranks import NodeRanks
from ddp_doctor.ranks.run import Run
from ddp_doctor.ranks.torchrun.launch import end_all
from ddp_doctor.starters.request import RunRequest

if TYPE_CHECKING:  # a run of one node does without
    from ddp_doctor.agents.agent_group import AgentGroup


@dataclass
class Session:
    """The processes of one run. Use as a context manager; leaving it leaves nothing behind."""

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
        end_all(self.run_folder)  # one that a signal kept the agent from ending
        if self._control is not None:
            self._control.stop()
        self.server.stop()
        shutil.rmtree(self.run_folder, ignore_errors=True)

    def warm_up(self, checks: Sequence[Check] | None = None) -> None:
        """Start importing torch in the forkserver, for all checks or these. Call from the main thread, first of all."""
        self.server.start(ddp=checks is None or any(check.group == "DDP" for check in checks))

    def torch_is_imported(self, checks: Sequence[Check]) -> bool:
        """Wait until ranks can be forked; where torch cannot be imported the checks have failed."""
        self.request.progress("import torch")
        began = time.monotonic()
        try:
            preload = self.server.wait_ready(deadlines.IMPORT_S)
        except BaseException:
            why = f"torch was being imported{self.server.import_stands()}"
            reason = interrupted_after(time.monotonic() - began, why)
            self.partial.readings.extend(
                Reading(check=check.id, status=Status.SKIPPED, reason=reason) for check in checks[:1]
            )
            raise
        fact = TorchImport(
            import_s=preload.import_s, error=preload.error, stuck_at=preload.stuck_at, moving=preload.moving
        )
        self.can_fork = preload.ok
        problem = None if preload.ok else "torch cannot be imported"
        if preload.moving:
            problem = f"torch was still being imported after {preload.import_s:.0f} s: this machine is slow or busy"
        if preload.lost is not None:
            self.partial.fail_unread(checks, preload.lost)
            return False
        for check in checks if problem else checks[:1]:
            self.partial.readings.append(
                Reading(
                    check=check.id if problem else PROCESS_GROUP,
                    status=Status.FAILED if problem else Status.COLLECTED,
                    fact=fact.recorded(),
                    reason=problem,
                )
            )
        return preload.ok

    def start_control(self) -> None:
        """Start the store on which the ranks of a run of one node meet."""
        if self._control is None:
            self._control = control_store.start(self.server, self.run_folder, *self.request.endpoint)

    def run_of(self, recording: Recording, until: float, node: int = 0) -> Run:
        """The run in this recording's world, with its options; the user's model is what this node was given."""
        assert recording.world is not None
        options = recording.options.model_copy(update={"model": self.request.options.model})
        return Run(options, self.request.env, self.request.progress, recording.world, node, until)

    def node_ranks(self, run: Run, store: tuple[str, int] | None) -> NodeRanks:
        """This node's ranks; they can be forked once torch is imported and the store is up."""
        return NodeRanks(run, self.run_folder, self.server, store)

    def agent_alone(self, run: Run) -> Agent:
        """The agent of a run of one node."""
        return self.agent(run, self._control)

    def agent(self, run: Run, control: Control | None, group: "AgentGroup | None" = None) -> Agent:
        """The agent that decides."""
        store = (control.host, control.port) if control is not None else None
        node_ranks = NodeRanks(run, self.run_folder, self.server, store, control)
        return Agent(node_ranks, self.partial, group)
