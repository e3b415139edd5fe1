"""user_model on ddp-doctor's own workers: user code that does not return is reported with its line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.ddp import step_time
from ddp_doctor.facts.ddp.step_time import StepTimeFact
from ddp_doctor.features.model.user_model import check as user_model
from ddp_doctor.features.model.user_model.facts import UserModel
from tests.launch.conftest import Play, Scenario
from tests.models import __file__ as models
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.ranks

NET = """import torch

def make():
    print("password=hunter2")
    return torch.nn.Linear(2, 2), lambda step: torch.ones(3, int(input("how many? ")))
"""

Named = Callable[..., Scenario]


@pytest.fixture
def with_model(play: Play) -> Named:
    """Play the probe with a model of tests/models: ``with_model("planted:endless", ranks=2)``."""

    def play_with(name: str, ranks: int = 2, deadline_s: float = 4.0, **more: Any) -> Scenario:
        name = name if name.startswith("net:") else f"tests.models.{name}"
        more = {"needs_model": True, "model": name, **more}
        return play(*(user_model.probe, ranks, deadline_s, "user_model"), **more)

    return play_with


def line_of(words: str) -> str:
    lines = (Path(models).parent / "planted.py").read_text().splitlines()
    return f"planted.py:{next(number for number, line in enumerate(lines, 1) if words in line)}"


@pytest.mark.parametrize("ranks", [1, 4])  # two: test_healthy_model_is_measured_in_the_same_processes
def test_healthy_model_has_no_finding_on_workers(with_model, ranks):
    scenario = with_model("healthy:conv_net", ranks=ranks, deadline_s=LIMIT_S)

    assert scenario.codes == []
    assert len(scenario.outcome.recording.facts(UserModel)) == ranks


def test_rank_that_hangs_in_the_forward_is_reported_before_the_deadline(with_model):
    scenario = with_model("planted:collective_on_one_rank", ranks=3, deadline_s=LIMIT_S, still_s=1.5)

    assert (scenario.codes, scenario.culprits) == (["DD610"], [1])
    line = line_of("the line that the report must name")
    assert scenario.title.startswith(f"Rank 1 hangs in your forward at {line} `dist.all_reduce(seen)")
    assert scenario.outcome.report.findings[0].detail.startswith("Ranks 0, 2 have waited ")
    assert scenario.outcome.recording.trials[0].waited_s < LIMIT_S


def test_factory_that_hangs_on_one_rank_is_reported_with_its_line(with_model):
    scenario = with_model("planted:endless_on_one_rank")

    assert (scenario.codes, scenario.culprits) == (["DD610"], [1])
    line = line_of("this one as well")
    assert scenario.title.startswith(
        f"Rank 1 hangs in the function that builds your model at {line} `threading.Event().wait()"
    )


def test_factory_that_hangs_on_all_ranks_blames_no_rank_and_is_not_measured(with_model):
    scenario = with_model("planted:endless", then=(step_time.CHECK,))

    assert scenario.codes == ["DD785"]
    assert [rank for rank in scenario.culprits if rank is not None] == []
    assert scenario.title.startswith("Both ranks have hung for ")
    assert f" in the function that builds your model at {line_of('this one as well')} `threading" in scenario.title
    (left,) = scenario.outcome.recording.not_run
    assert (left.check, left.reason) == ("step_time", "tests.models.planted:endless did not pass the user_model check")


def test_factory_that_computes_silently_is_not_a_hang(with_model):
    scenario = with_model("healthy:made_slowly", ranks=1, deadline_s=LIMIT_S, still_s=1.5)

    assert scenario.codes == []
    assert [trial.outcome for trial in scenario.outcome.recording.trials] == ["finished"]


def test_healthy_model_is_measured_in_the_same_processes(with_model):
    scenario = with_model("healthy:wide_net", deadline_s=LIMIT_S, then=(step_time.CHECK,))

    (one, other) = scenario.outcome.recording.facts(StepTimeFact)
    assert one.fact.model == other.fact.model == "tests.models.healthy:wide_net"
    assert len(scenario.outcome.recording.trials) == 1


def test_model_that_fails_in_ddp_on_all_ranks_has_a_finding(with_model):
    scenario = with_model("planted:dislikes_ddp", deadline_s=LIMIT_S)

    assert scenario.codes == ["DD786"]
    assert "Expected to mark a variable ready only once" in scenario.title


def test_failed_line_of_a_local_module_is_shown_without_its_output(with_model, tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    scenario = with_model("net:make", ranks=1, deadline_s=LIMIT_S)

    assert scenario.codes == ["DD771"]
    assert "Your make_batch raises EOFError at net.py:5" in scenario.title
    assert "hunter2" not in scenario.outcome.recording.model_dump_json()


def test_unusable_factory_is_a_usage_error_with_a_reason(with_model):
    scenario = with_model("planted:gives_a_number", deadline_s=LIMIT_S)

    assert scenario.codes == []
    report = scenario.outcome.report
    assert (report.verdict.value, report.exit_code) == ("unsure", 2)
    assert ": tests.models.planted:gives_a_number returns type int" in report.summary
    assert all("returns type int" in (one.reason or "") for one in scenario.outcome.recording.of_check("user_model"))


# Models in fully_shard


def line_in(words: str) -> str:
    lines = (Path(models).parent / "sharded_planted.py").read_text().splitlines()
    return f"sharded_planted.py:{next(number for number, line in enumerate(lines, 1) if words in line)}"


@pytest.mark.parametrize("ranks", [1, 2])
def test_sharded_model_has_no_finding_on_workers(with_model, ranks):
    scenario = with_model("sharded:plain", ranks=ranks, deadline_s=LIMIT_S)

    assert scenario.codes == []
    facts = [rank.fact for rank in scenario.outcome.recording.facts(UserModel)]
    assert [(fact.sharded.steps, fact.sharded.not_compared) for fact in facts if fact.sharded] == [(2, None)] * ranks


@pytest.mark.parametrize(
    ("name", "words"), [("lost_in_the_forward", "hangs in your forward"), ("lost_in_the_step", "hangs in your step")]
)
def test_rank_that_hangs_in_user_code_is_reported_while_others_wait_in_fully_shard(with_model, name, words):
    scenario = with_model(f"sharded_planted:{name}", ranks=3, deadline_s=LIMIT_S, still_s=1.5)

    assert (scenario.codes, scenario.culprits) == (["DD610"], [1])
    assert f"Rank 1 {words} at sharded_planted.py:" in scenario.title
    assert "`threading.Event().wait()`" in scenario.title
    assert scenario.outcome.report.findings[0].detail.startswith("Ranks 0, 2 have waited ")


def test_exception_of_one_rank_in_the_step_is_reported_with_its_line(with_model):
    scenario = with_model("sharded_planted:raises_in_the_step", ranks=3, deadline_s=LIMIT_S)

    assert (scenario.codes, scenario.culprits) == (["DD613"], [1])
    line = line_in('raise ValueError("no such batch")')
    assert f"Rank 1 raised ValueError at {line} in the sharded step of your model" in scenario.title


def test_exception_of_all_ranks_in_a_sharded_step_is_attributed_to_fully_shard(with_model):
    scenario = with_model("sharded_planted:raises_in_every_step", deadline_s=LIMIT_S)

    assert scenario.codes == ["DD786"]
    assert "works alone but fails in fully_shard on every rank with ValueError" in scenario.title


def test_fsdp1_is_a_usage_error_that_points_to_fsdp2(with_model):
    scenario = with_model("sharded_planted:in_fsdp1", deadline_s=LIMIT_S)

    assert scenario.outcome.report.exit_code == 2
    assert "(FSDP1); only fully_shard (FSDP2) can be tested" in scenario.outcome.report.summary
