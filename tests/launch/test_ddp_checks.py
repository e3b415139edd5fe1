"""The checks of DDP and of checkpoints on the doctor's own workers, as `run` starts them."""

import pytest

from ddp_doctor.checks.ddp import (
    buffers,
    checkpoint,
    data_sharding,
    gradient_modes,
    gradient_sync,
    mixed_precision,
)
from ddp_doctor.facts.ddp.data_sharding import DataSharding
from ddp_doctor.facts.ddp.gradients import GradientModes, GradientSync, MixedPrecision
from ddp_doctor.facts.ddp.model_state import Buffers, Checkpoint
from ddp_doctor.model.rule import Rule
from tests.launch.conftest import Play, Scenario

pytestmark = pytest.mark.ranks


def codes(scenario: Scenario, rules: tuple[Rule, ...]) -> list[str]:
    return [finding.code for rule in rules for finding in rule.apply(scenario.outcome.recording)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_gradient_sync_is_healthy_on_workers(play: Play, ranks):
    scenario = play(gradient_sync.probe, ranks=ranks, deadline_s=10.0)

    facts = scenario.outcome.recording.facts(GradientSync)
    assert [seen.rank for seen in facts] == list(range(ranks))
    assert codes(scenario, gradient_sync.CHECK.rules) == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_buffers_is_healthy_on_workers(play: Play, ranks):
    scenario = play(buffers.probe, ranks=ranks, deadline_s=10.0)

    facts = scenario.outcome.recording.facts(Buffers)
    assert [seen.rank for seen in facts] == list(range(ranks))
    assert codes(scenario, buffers.CHECK.rules) == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_data_sharding_is_healthy_on_workers(play: Play, ranks):
    scenario = play(data_sharding.probe, ranks=ranks, deadline_s=10.0)

    facts = scenario.outcome.recording.facts(DataSharding)
    assert [seen.rank for seen in facts] == list(range(ranks))
    assert codes(scenario, data_sharding.CHECK.rules) == []
    assert facts[0].fact.steps == ((2, 1) if ranks == 2 else ())


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradient_modes_is_healthy_on_workers(play: Play, ranks):
    scenario = play(gradient_modes.probe, ranks=ranks, deadline_s=10.0)

    facts = scenario.outcome.recording.facts(GradientModes)
    assert [seen.rank for seen in facts] == list(range(ranks))
    assert codes(scenario, gradient_modes.CHECK.rules) == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_mixed_precision_is_healthy_on_workers(play: Play, ranks):
    scenario = play(mixed_precision.probe, ranks=ranks, deadline_s=10.0)

    facts = scenario.outcome.recording.facts(MixedPrecision)
    assert [seen.rank for seen in facts] == list(range(ranks))
    assert codes(scenario, mixed_precision.CHECK.rules) == []


def test_checkpoint_is_healthy_on_workers_and_in_a_smaller_group(play: Play, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scenario = play(checkpoint.probe, ranks=3, deadline_s=20.0)

    found = [seen.fact.sharded for seen in scenario.outcome.recording.facts(Checkpoint)]
    assert [one and one.resharded and one.resharded.world_size for one in found] == [2, 2, None]
    assert codes(scenario, checkpoint.CHECK.rules) == []
    assert list(tmp_path.iterdir()) == []
