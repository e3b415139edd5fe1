"""Real ranks for many scenarios: torch is imported once for all test modules."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddp_doctor import app
from ddp_doctor.app import Outcome
from ddp_doctor.cli.given import axes
from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.model.check import Check, Probe
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.recording import Node, Options, Recording, World
from ddp_doctor.ranks.node_ranks import Run
from ddp_doctor.starters.request import RunRequest
from tests.launch.agents import Agent, Start, end
from tests.once import free_port
from tests.waiting import LIMIT_S, wait_until


@dataclass
class Scenario:
    outcome: Outcome

    @property
    def codes(self) -> list[str]:
        return [finding.code for finding in self.outcome.report.findings]

    @property
    def culprits(self) -> list[int | None]:
        found = self.outcome.report.findings
        return [culprit.rank for finding in found for culprit in finding.culprits]

    @property
    def title(self) -> str:
        return self.outcome.report.findings[0].title


Play = Callable[..., Scenario]


@pytest.fixture(scope="package")
def session() -> Iterator[Session]:
    """Yield a session whose server has imported torch, so it forks immediately."""
    with Session(RunRequest(Options(), dict(os.environ))) as session:
        session.warm_up()
        imported = session.server.wait_ready(LIMIT_S)
        assert (imported.error, imported.stuck_at) == (None, None)
        yield session


@pytest.fixture(scope="package")
def play(session: Session) -> Play:
    """``play(probe, ranks=4, deadline_s=4.0)`` runs one probe on real ranks and judges it."""
    session.start_control()
    assert session._control is not None
    store = session._control.process.pid
    played = 0
    before = {process.pid for process in _descendants()}

    def play_one(
        probe: Probe,
        ranks: int = 4,
        deadline_s: float = 4.0,
        check_id: str = "scenario",
        needs_model: bool = False,
        still_s: float | None = None,
        then: Sequence[Check] = (),
        budget_s: float = LIMIT_S,
        model: str = "",
        parts: Callable[[Options], tuple[str, ...]] | None = None,
        mesh: str = "",
    ) -> Scenario:
        nonlocal played
        world = World(nproc_per_node=ranks, world_size=ranks, nodes=(Node(hostname="node0"),))
        for kept in (session.partial.readings, session.partial.trials, session.partial.not_run):
            kept.clear()
        check = Check(
            *(check_id, "A scenario", Where.RANK, probe, ()),
            deadline_s=deadline_s,
            still_s=still_s,
            needs_model=needs_model,
            parts=parts,
            needs_mesh=bool(mesh),
        )
        options = Options(level=Level.QUICK, model=model, mesh=axes(mesh or None))
        run = Run(options, os.environ, lambda _text: None, world, until=time.monotonic() + budget_s)
        agent = session.agent(run)
        agent.attempts = played
        try:
            agent.run_checks([check, *then])
        finally:
            played += len(session.partial.trials)
        recording = session.partial.added_to(Recording(run_id="test", world=world))
        wait_until(lambda: not [p for p in _descendants() if p.pid not in before and p.pid != store], "nothing is left")
        return Scenario(app.judge(recording))

    return play_one


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def start(tmp_path: Path, port: int) -> Iterator[Start]:
    """Yield ``start(nnodes, node_rank, *options)``, which starts an agent; remaining agents are ended."""
    agents: list[Agent] = []

    def one(nnodes: int, claims: int, *options: str, **more: Any) -> Agent:
        agents.append(Agent(tmp_path, port, nnodes, claims, "--level", "quick", *options, **more))
        return agents[-1]

    yield one
    left = [process for agent in agents for process in agent.family()]
    end(agents)
    assert left == [], "processes were left"


def _descendants() -> list[psutil.Process]:
    alive = []
    for process in psutil.Process().children(recursive=True):
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            alive.append(process)
    return alive
