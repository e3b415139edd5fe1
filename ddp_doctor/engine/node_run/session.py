"""One run on one node, from the first fork to the last kill; collects, judges nothing."""

import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.agents.agent_group import AgentGroup
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.facts.process_group import TorchImport
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Status, Where
from ddp_doctor.model.experiment import Experiment
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks import control_store, run_folder, torchrun
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.node_ranks import NodeRanks


@dataclass
class Session:
    """The processes of one run. Use as a context manager; leaving it leaves nothing behind.

    Readings and trials are filled as they come, so that an interrupted run still has them.
    """

    env: Mapping[str, str]
    endpoint: tuple[str, int]
    progress: Callable[[str], None]
    model: str = ""  # the user's own; what another node's head says of it does not count
    readings: list[Reading] = field(default_factory=list)
    trials: list[TrialRecord] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    scratch: Path = field(init=False)
    server: ForkServer = field(init=False)
    _control: control_store.Control | None = field(default=None, init=False)
    _can_fork: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.scratch = run_folder.make()
        self.server = ForkServer(self.scratch, dict(self.env))

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        torchrun.end_all(self.scratch)  # one that a signal kept the agent from ending
        if self._control is not None:
            self._control.stop()
        self.server.stop()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def warm_up(self) -> None:
        """Start importing torch in the forkserver. Call from the main thread, first of all."""
        self.server.start()

    def run_ranks(self, checks: Sequence[Check], world: World, level: Level, budget_s: float) -> None:
        """Run the launcher's and the ranks' checks of one node."""
        until = time.monotonic() + budget_s
        launcher = [check for check in checks if check.where is Where.LAUNCHER]
        ranks = [check for check in checks if check.where is Where.RANK]

        def run_forked() -> None:
            if ranks and self.torch_is_imported(ranks):
                self._start_control()
                self.agent_alone(world, level, until).run(ranks)

        if launcher:  # in the time that the forkserver needs to import torch
            self.agent_alone(world, level, until).run_under_torchrun(launcher, meanwhile=run_forked)
        else:
            run_forked()

    def fail(self, checks: Sequence[Check], why: str, trace: str) -> None:
        """The doctor failed itself: what was not evaluated, or where all was the last of it, has failed.

        It is never passed over in silence.
        """
        if not self.leave_unread(checks, why, trace):
            self.readings[:0] = [
                _failed(check, why, trace) for check in checks[-1:]
            ]  # its first reason is shown

    def leave_unread(self, checks: Sequence[Check], why: str, trace: str = "") -> bool:
        """Note which of these checks were not evaluated, those that no rank answered; whether any was."""
        read = {reading.check for reading in self.readings}
        unread = [check for check in checks if check.id not in read]
        self.readings += [_failed(check, why, trace) for check in unread]
        return bool(unread)

    def torch_is_imported(self, checks: Sequence[Check]) -> bool:
        """Wait until ranks can be forked; where torch cannot be imported the checks have failed."""
        self.progress("import torch")
        preload = self.server.wait_ready(deadlines.IMPORT_S)
        fact = TorchImport(
            import_s=preload.import_s, error=preload.error, stuck_at=preload.stuck_at, moving=preload.moving
        )
        self._can_fork = preload.ok
        problem = None if preload.ok else "torch cannot be imported"
        if preload.moving:
            problem = (
                f"torch was still being imported after {preload.import_s:.0f} s: this machine is slow or busy"
            )
        for check in checks if problem else checks[:1]:
            self.readings.append(
                Reading(
                    check=check.id if problem else "process_group",
                    status=Status.FAILED if problem else Status.COLLECTED,
                    fact=fact.recorded(),
                    reason=problem,
                )
            )
        return preload.ok

    def _start_control(self) -> None:
        host, port = self.endpoint
        if self._control is None:
            self._control = control_store.start(self.server, self.scratch, host, port)

    def agent_to_prove(self, world: World, level: Level, until: float) -> Agent | None:
        """An agent for more trials when the checks are done; None where no rank can be forked."""
        return self.agent_alone(world, level, until) if self._can_fork else None

    def agent_alone(self, world: World, level: Level, until: float) -> Agent:
        """The agent of a world of one node."""
        return self.agent(self.crew(world, 0, level, self._control), self._control, until)

    def crew(
        self, world: World, node: int, level: Level, store: control_store.Control | tuple[str, int] | None
    ) -> NodeRanks:
        """This node's part of a world; it can fork ranks once torch is imported and the store is up."""
        at = (store.host, store.port) if isinstance(store, control_store.Control) else store
        return NodeRanks(
            self.scratch, self.server, at, world, node, self.env, level, self.progress, self.model
        )

    def agent(
        self,
        crew: NodeRanks,
        store: control_store.Control | None,
        until: float,
        company: AgentGroup | None = None,
    ) -> Agent:
        """The agent that decides, which fills this session's readings and trials."""
        return Agent(crew, store, until, self.trials, self.readings, self.left_out, company)


def _failed(check: Check, why: str, trace: str) -> Reading:
    return Reading(check=check.id, status=Status.FAILED, reason=why, raw=trace)


def addresses() -> dict[str, tuple[str, ...]]:
    """This host's interfaces that are up, with their IP addresses."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return {
        name: tuple(one.address for one in known if one.family in families)
        for name, known in psutil.net_if_addrs().items()
        if name in up
    }
