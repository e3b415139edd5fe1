"""One run on one node, from the first fork to the last kill; collects, judges nothing."""

import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.checks.process_group import TorchImport
from ddp_doctor.knowledge import deadlines
from ddp_doctor.launch import control
from ddp_doctor.launch.agent import Agent
from ddp_doctor.launch.forkserver import ForkServer
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Status, Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import World
from ddp_doctor.model.trial import TrialRecord


@dataclass
class Session:
    """The processes of one run. Use as a context manager; leaving it leaves nothing behind.

    Readings and trials are filled as they come, so that an interrupted run still has them.
    """

    env: Mapping[str, str]
    endpoint: tuple[str, int]
    progress: Callable[[str], None]
    readings: list[Reading] = field(default_factory=list)
    trials: list[TrialRecord] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    scratch: Path = field(init=False)
    _server: ForkServer = field(init=False)
    _control: control.Control | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # A socket lives in it, and the path of a socket holds 107 characters.
        folder = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"
        self.scratch = Path(tempfile.mkdtemp(prefix="ddp-doctor-", dir=folder))
        self._server = ForkServer(self.scratch, dict(self.env))

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        if self._control is not None:
            self._control.stop()
        self._server.stop()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def warm_up(self) -> None:
        """Start importing torch in the forkserver. Call from the main thread, first of all."""
        self._server.start()

    def run_ranks(self, checks: Sequence[Check], world: World, level: Level, budget_s: float) -> None:
        """Run the launcher's and the ranks' checks."""
        until = time.monotonic() + budget_s
        launcher = [check for check in checks if check.where is Where.LAUNCHER]
        ranks = [check for check in checks if check.where is Where.RANK]
        with ExitStack() as torchrun_ends:
            if launcher:  # in the time that the forkserver needs to import torch
                agent = self.agent(world, level, until)
                torchrun_ends.enter_context(agent.running_under_torchrun(launcher))
            if ranks and self._torch_is_imported(ranks):
                self._start_control()
                self.agent(world, level, until).run(ranks)

    def fail(self, checks: Sequence[Check], why: str, trace: str) -> None:
        """Note that these checks were not evaluated, except where a rank already answered."""
        read = {reading.check for reading in self.readings}
        for check in checks:
            if check.id not in read:
                self.readings.append(Reading(check=check.id, status=Status.FAILED, reason=why, raw=trace))

    def _torch_is_imported(self, checks: Sequence[Check]) -> bool:
        self.progress("import torch")
        preload = self._server.wait_ready(deadlines.IMPORT_S)
        fact = TorchImport(import_s=preload.import_s, error=preload.error, stuck_at=preload.stuck_at)
        problem = None if preload.ok else "torch cannot be imported"
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
            self._control = control.start(self._server, self.scratch, host, port)

    def agent(self, world: World, level: Level, until: float) -> Agent:
        """The agent of this node; it can fork ranks once torch is imported and the store is up."""
        return Agent(
            scratch=self.scratch,
            server=self._server,
            control=self._control,
            world=world,
            env=self.env,
            level=level,
            progress=self.progress,
            until=until,
            trials=self.trials,
            readings=self.readings,
            left_out=self.left_out,
        )


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
