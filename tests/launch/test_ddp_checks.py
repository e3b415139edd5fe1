"""The checks of DDP and of checkpoints on the doctor's own workers, as `run` starts them."""

from typing import Any

import pytest

from ddp_doctor.checks.ddp import buffers, checkpoint, gradient_sync, initial_state
from ddp_doctor.facts.ddp.gradients import GradientSync
from ddp_doctor.facts.ddp.model_state import Buffers, Checkpoint, InitialState
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.rule import Rule
from tests.launch.conftest import Play, Scenario
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.ranks

CHECKS: dict[type[Fact], Any] = {GradientSync: gradient_sync, InitialState: initial_state, Buffers: buffers}


def codes(scenario: Scenario, rules: tuple[Rule, ...]) -> list[str]:
    return [finding.code for rule in rules for finding in rule.apply(scenario.outcome.recording)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_checks_of_ddp_are_healthy_on_workers(play: Play, ranks):
    tested = {kind: module.CHECK for kind, module in CHECKS.items() if module.CHECK.min_ranks <= ranks}
    first, *others = tested.values()
    scenario = play(first.probe, ranks=ranks, deadline_s=LIMIT_S, then=others)

    recording = scenario.outcome.recording
    for kind, check in tested.items():
        assert [seen.rank for seen in recording.facts(kind)] == list(range(ranks))
        assert codes(scenario, check.rules) == []
    assert len(recording.trials) == 1


def test_checkpoint_is_healthy_on_workers(play: Play, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scenario = play(checkpoint.probe, ranks=3, deadline_s=LIMIT_S)

    assert len(scenario.outcome.recording.facts(Checkpoint)) == 3
    assert codes(scenario, checkpoint.CHECK.rules) == []
    assert list(tmp_path.iterdir()) == []
