"""The project's bars, each as a ratio measured in one run, interleaved, medians with their spread.

``make bench`` prints what was measured; a bar that is not met fails.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.recording import Options, World
from ddp_doctor.ranks.node_ranks import Run
from ddp_doctor.starters.request import RunRequest
from tests.bench import paired
from tests.features.lint.hundred import write_hundred
from tests.lab import faults, several_nics
from tests.lab.hosts import Lab, why_no_lab
from tests.launch import misbehaving
from tests.launch.agents import Agent, end
from tests.once import free_port

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
DOCTOR = (sys.executable, "-m", "ddp_doctor")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def _seconds(argv: Sequence[str], code: int = 0) -> float:
    started = time.perf_counter()
    env = {**os.environ, "XDG_STATE_HOME": "/tmp/ddp-bench"}
    done = subprocess.run(argv, check=False, capture_output=True, env=env)
    seconds = time.perf_counter() - started
    assert done.returncode == code, done.stderr
    return seconds


def _interleaved(runs: int, *actions: Callable[[], float]) -> list[list[float]]:
    for action in actions:
        action()
    rounds = [[action() for action in actions] for _ in range(runs)]
    return [list(column) for column in zip(*rounds, strict=True)]


def _tell(what: str, values: Sequence[float]) -> float:
    median = statistics.median(values)
    print(f"\n  {what}: median {median:.3f} s ({min(values):.3f} to {max(values):.3f}, {len(values)} runs)", end="")
    return median


def _hello(ranks: int) -> Callable[[], float]:
    return lambda: _seconds((*TORCHRUN, "--nproc-per-node", str(ranks), str(HERE / "hello.py")))


def _doctor(*args: str, code: int = 0) -> Callable[[], float]:
    return lambda: _seconds((*DOCTOR, "run", "--quiet", *args), code)


def test_a_run_costs_little_more_than_a_torchrun_hello_world():
    hello, quick, standard = _interleaved(5, _hello(2), _doctor("--level", "quick"), _doctor("--level", "standard"))
    base = _tell("torchrun hello-world, 2 ranks", hello)
    quick_ratio = _tell("run --level quick", quick) / base
    standard_ratio = _tell("run --level standard", standard) / base
    print(f"\n  ratios: quick {quick_ratio:.2f} (bar 0.9), standard {standard_ratio:.2f} (bar 2.0)")

    assert quick_ratio <= 0.9
    assert standard_ratio <= 2.0


def test_64_ranks_cost_a_fraction_of_torchrun():
    doctor = _tell("run --level quick, 64 ranks", [_doctor("--level", "quick", "--nproc-per-node", "64")()])
    hello = _tell("torchrun hello-world, 64 ranks", [_hello(64)()])
    print(f"\n  ratio: {doctor / hello:.2f} (bar 0.3)")

    assert doctor / hello <= 0.3


def test_reported_bandwidth_equals_a_bare_loop():
    with _session() as session:
        check = Check("paired", "Paired", Where.RANK, paired.probe, (), deadline_s=180.0)
        session.agent(_run_of_two_ranks()).run_checks([check])
        assert session.partial.trials[0].outcome == "finished"
        fact = paired.Paired.model_validate(session.partial.readings[0].fact)
    off = {}
    for name in paired.NAMES:
        _tell(f"{name} of 4 MiB, doctor", fact.ours[name])
        _tell("bare loop", fact.bare[name])
        rounds = zip(fact.ours[name], fact.bare[name], strict=True)
        off[name] = statistics.median(ours / bare for ours, bare in rounds) - 1
        print(f"\n  off by {off[name]:+.1%} (bar 5 %)")

    assert max(map(abs, off.values())) <= 0.05


def test_help_is_instant():
    (times,) = _interleaved(5, lambda: _seconds((*DOCTOR, "--help")))

    assert _tell("--help (bar 0.25 s)", times) <= 0.25


def test_prolog_takes_less_than_a_second():
    (times,) = _interleaved(5, lambda: _seconds((sys.executable, "-I", "-m", "ddp_doctor", "prolog")))

    assert _tell("prolog (bar 1 s)", times) <= 1.0


def test_one_more_trial_is_cheap():
    times = []
    with _session() as session:
        check = Check("trial", "A bare trial", Where.RANK, misbehaving.well_behaved, ())
        for number in range(12):
            session.partial.trials.clear()
            agent = session.agent(_run_of_two_ranks())
            agent.attempts = number
            started = time.perf_counter()
            agent.run_checks([check])
            times.append(time.perf_counter() - started)
            assert session.partial.trials[0].outcome == "finished"
    assert _tell("one more trial, 2 ranks (bar 0.2 s)", times[2:]) <= 0.2


def test_one_more_trial_over_two_nodes_is_cheap(tmp_path):
    seconds, port = tmp_path / "seconds.json", free_port()
    options = ("--only", "process_group", "--nproc-per-node", "1")
    told = {"DDP_DOCTOR_BENCH": str(seconds)}
    agents = [
        Agent(tmp_path, port, 2, 0, *options, module="tests.bench.many_trials", more_env=told),
        Agent(tmp_path, port, 2, 1, *options),
    ]
    try:
        for agent in agents:
            agent.process.wait(60.0)
    finally:
        end(agents)
    times = json.loads(seconds.read_text())
    assert _tell("one more trial, 2 nodes (bar 0.3 s)", times[2:]) <= 0.3


def test_proving_one_finding_of_two_ranks_costs_little(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    quick = ("--level", "quick")
    with_proof, without = _interleaved(5, _doctor(*quick, code=1), _doctor(*quick, "--no-prove", code=1))
    added = [one - other for one, other in zip(with_proof, without, strict=True)]

    assert _tell("time that proving one finding adds (bar 3 s)", added) <= 3.0


@pytest.mark.skipif(why_no_lab() is not None, reason=why_no_lab() or "")
@pytest.mark.parametrize(
    ("plant", "endpoint", "kind"),
    [("dead-port:node1", several_nics.SECOND, "meet"), ("rate:node0:100", several_nics.FIRST, "all_reduce")],
)
def test_proving_one_finding_of_two_nodes_costs_little(plant, endpoint, kind):
    def of_two_hosts(lab: Lab, *arguments: str) -> float:
        started = time.perf_counter()
        done = several_nics.run(lab, endpoint, *arguments)
        (finding,) = done.findings().values()
        assert finding["reproduced_by"]["kind"] == kind
        assert (finding["remedies"][0]["proof"]["status"] == "proved") is (not arguments)
        return time.perf_counter() - started

    with Lab(nodes=2, second_nic=True) as lab:
        faults.plant(lab, plant)
        with_proof, without = _interleaved(5, lambda: of_two_hosts(lab), lambda: of_two_hosts(lab, "--no-prove"))
    added = [one - other for one, other in zip(with_proof, without, strict=True)]

    assert _tell(f"time that proving one finding of two nodes adds, {kind} (bar 3 s)", added) <= 3.0


def _run_of_two_ranks() -> Run:
    world = World(nproc_per_node=2, world_size=2)
    return Run(Options(), os.environ, lambda _text: None, world, until=time.monotonic() + 60)


@contextmanager
def _session() -> Iterator[Session]:
    with Session(RunRequest(Options(), dict(os.environ))) as session:
        session.warm_up()
        assert session.server.wait_ready(60).error is None
        session.start_control()
        yield session


def test_a_hundred_scripts_are_linted_in_a_second(tmp_path: Path):
    paths = write_hundred(tmp_path)
    lines = sum(path.read_text().count("\n") for path in paths)
    (seconds,) = _interleaved(5, lambda: _seconds((*DOCTOR, "lint", "--quiet", str(tmp_path)), code=1))
    median = _tell(f"lint of 100 training scripts, {lines} lines, the whole process", seconds)

    assert median <= 1.0
