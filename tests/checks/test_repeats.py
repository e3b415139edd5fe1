"""repeats: many tests of real ranks, a fault that occurs one time in five, interrupted runs, and replay."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_doctor.agents.agent_group import Left
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.node_run.partial_recording import PartialRecording
from ddp_doctor.engine.repeats import repeat
from ddp_doctor.facts.collectives import GroupTest, RepeatsFact
from ddp_doctor.model.choices import CheckStatus, Verdict
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.report import Report
from tests.launch.agents import Agent, end
from tests.once import free_port
from tests.waiting import LIMIT_S, wait_until

#: Rank 1 raises in the fourth of five worlds. The fault is injected into the process that forks the ranks.
_NOW_AND_THEN = """
import os, sys

def plant():
    dist = sys.modules.get("torch.distributed")
    if dist is None:
        return
    usual, called = dist.all_reduce, []

    def all_reduce(*args, **kwargs):
        if os.environ.get("RANK") == "1" and not called:
            called.append(True)
            with open(os.environ["WORLDS"], "a") as file:
                file.write(".")
            if os.path.getsize(os.environ["WORLDS"]) % 5 == 4:
                raise RuntimeError("a link that comes and goes")
        return usual(*args, **kwargs)

    dist.all_reduce = all_reduce

os.register_at_fork(after_in_child=plant)
"""

# --- real ranks -------------------------------------------------------------------------------------------


def planted(folder: Path) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(_NOW_AND_THEN)
    return {"PYTHONPATH": str(folder), "WORLDS": str(folder / "worlds")}


def start(folder: Path, *options: str, **env: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "ddp_doctor", "run", "--only", "repeats", *options, "--json", str(folder / "r.json")]
    own = {**os.environ, "XDG_STATE_HOME": str(folder), **env}
    return subprocess.Popen(argv, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run(folder: Path, *options: str, **env: str) -> Report:
    with start(folder, *options, **env) as process:
        said = process.communicate(timeout=LIMIT_S)[0]
    assert (folder / "r.json").exists(), said
    return Report.model_validate_json((folder / "r.json").read_text())


def shares(report: Report) -> dict[str, float]:
    return {measured.name: measured.value for measured in report.measurements}


@pytest.mark.ranks
def test_healthy_repeats_report_the_failure_rate_that_they_exclude(tmp_path: Path):
    report = run(tmp_path, "--repeat", "8")

    assert (report.verdict, [finding for finding in report.findings if finding.code == "DD670"]) == ("healthy", [])
    assert report.summary.endswith("No failure in 8 repeats: failure rate below 32% (95% interval).")
    assert shares(report)["repeats_failed"] == 0.0


@pytest.mark.ranks
def test_fault_in_one_of_five_runs_is_found_with_rate_and_reason(tmp_path: Path):
    report = run(tmp_path, "--repeat", "10", **planted(tmp_path))

    (found,) = [finding for finding in report.findings if finding.code == "DD670"]
    assert (report.verdict, found.culprits) == (Verdict.UNHEALTHY, ())
    assert found.title == "2 of 10 repeats failed: 20% (95% interval 5.7 to 51%)"
    assert "2 of 2: rank 1: RuntimeError: a link that comes and goes" in [evidence.text for evidence in found.evidence]


@pytest.mark.ranks
def test_interrupted_run_reports_the_failure_rate_so_far(tmp_path: Path):
    env = planted(tmp_path)
    with start(tmp_path, "--repeat", "9999", **env) as process:
        wait_until(lambda: (tmp_path / "worlds").exists() and (tmp_path / "worlds").stat().st_size >= 6)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    report = Report.model_validate_json((tmp_path / "r.json").read_text())

    (check,) = [check for check in report.checks if check.id == "repeats"]
    assert process.returncode == 130
    assert [finding.code for finding in report.findings][:1] == ["DD670"]
    assert check.status is CheckStatus.FOUND
    assert report.summary.startswith("Interrupted: ")
    assert shares(report)["repeats_failed"] > 0.0


@pytest.mark.ranks
def test_a_soak_of_three_seconds_ends_in_time(tmp_path: Path):
    report = run(tmp_path, "--soak", "0.05")

    (check,) = [check for check in report.checks if check.id == "repeats"]
    assert report.verdict is Verdict.HEALTHY
    assert check.duration_s >= 3.0


@pytest.mark.ranks
def test_repeats_on_two_nodes_end_if_a_node_stops_responding(tmp_path: Path):
    port = free_port()
    agents = [Agent(tmp_path, port, 2, claims, "--only", "repeats", "--repeat", "9999") for claims in range(2)]
    try:
        agents[0].wait_for("repeat 5,")
        agents[1].process.kill()
        report = Report.model_validate(agents[0].report())
    finally:
        end(agents)

    assert "DD540" in [finding.code for finding in report.findings]
    assert report.verdict is not Verdict.HEALTHY
    assert shares(report)["repeats_failed"] == 0.0


@pytest.mark.parametrize(
    ("why", "says"),
    [
        ("interrupted", "interrupted after 0.0 s; none failed in 3 repeats"),
        ("a bug", "a bug; none failed in 3 repeats"),
    ],
)
def test_node_that_leaves_ends_the_repeats_and_the_rate_is_reported(monkeypatch, why: str, says: str):
    def leave(_agent: object, tests: list[GroupTest], _began: float) -> str:
        tests += [GroupTest(round=number, nodes=(0,), outcome="passed", duration_s=0.5) for number in range(3)]
        raise Left(1, why)

    monkeypatch.setattr("ddp_doctor.engine.repeats._repeat", leave)
    monkeypatch.setattr("ddp_doctor.engine.repeats.time", SimpleNamespace(monotonic=lambda: 100.0))
    node_ranks = SimpleNamespace(run=SimpleNamespace(progress=lambda _: None))
    agent: Any = SimpleNamespace(world=World(world_size=4), node_ranks=node_ranks)
    partial = PartialRecording()
    with pytest.raises(Left):
        repeat(CHECKS, agent, Recording(run_id="test"), partial)

    fact = partial.added_to(Recording(run_id="test")).first(RepeatsFact)
    assert fact is not None
    assert fact.stopped == says
