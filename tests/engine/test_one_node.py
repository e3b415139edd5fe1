"""A node's part of a run: ranks that are not worth starting, and a ddp-doctor that fails while torchrun exits."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.node import OneNode
from ddp_doctor.engine.node_run.partial_recording import PartialRecording
from ddp_doctor.engine.plan import make_plan
from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.choices import Where
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks.trial import TrialResult
from tests.readings import collected


def test_no_rank_starts_without_a_loopback_interface_and_checks_give_the_reason():
    fact = Host(cpus=2, loopback_problem="lo is down")
    reading = collected("host", fact)
    session: Any = SimpleNamespace(request=SimpleNamespace(options=Options()), partial=PartialRecording())
    plan = make_plan(Options(), CHECKS)
    recording = Recording(world=World(nnodes=1, world_size=2), readings=(reading,))
    node = OneNode(session, plan, recording, {})

    node.run()

    left_out = {left_out.check: left_out.reason for left_out in session.partial.not_run}
    assert set(left_out) == {check.id for check in (*node.rank_checks(), *node.plan.at(Where.AFTERWARDS))}
    assert set(left_out.values()) == {"ranks of one node cannot meet: lo is down"}


def test_output_of_torchrun_is_kept_if_ddp_doctor_fails():
    record = TrialRecord(trial="t0", launcher="torchrun", outcome="broken")
    notes = ("torchrun ended with exit code 1", "OSError: [Errno 24] Too many open files")

    @contextmanager
    def running(*_: object) -> Any:
        yield (
            TrialResult(record=record, readings=()),
            SimpleNamespace(notes=lambda _timeout_s: notes, with_exit_codes=tuple),
        )

    node_ranks: Any = SimpleNamespace(run=SimpleNamespace(world=World(world_size=2)), running_under_torchrun=running)
    agent = Agent(node_ranks, PartialRecording())

    with pytest.raises(RuntimeError, match="no store"):
        agent.run_under_torchrun((), meanwhile=_fails)
    assert [trial.notes for trial in agent.partial.trials] == [notes]


def _fails() -> None:
    raise RuntimeError("no store")
