"""Isolation on the head: the result of a trial of a group, and the end of the rounds."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_doctor.engine.isolation import conduct
from ddp_doctor.engine.isolation.group_tests import group_test
from ddp_doctor.engine.node_run.partial_recording import PartialRecording
from ddp_doctor.facts.collectives import GroupTest, IsolationFact, SizeResult, TrialMeasurement
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Reproducer
from ddp_doctor.model.recording import Options, World
from ddp_doctor.model.trial import Raised, RankEvidence, TrialRecord
from ddp_doctor.ranks.trial import TrialResult
from ddp_doctor.ranks.worker import remedy_probe
from ddp_doctor.settings import trials
from tests.readings import collected, plain_world

NODES = 8


def of_rank(rank: int, rate: float = 1e9, wrong: int = 0) -> Reading:
    fact = TrialMeasurement(bytes_per_s=rate, wrong=wrong)
    return collected("trying", fact, rank, rank=rank)


def trial(*readings: Reading, **fields: Any) -> TrialResult:
    usual = {"trial": "t1", "ranks": (0, 1), "outcome": "finished", "limit_s": 6.0, "duration_s": 6.0}
    return TrialResult(record=TrialRecord(**{**usual, **fields}), readings=readings)


REFUSED = RankEvidence(rank=1, raised=Raised(type="RuntimeError", message="Connection refused", at=0.1))
KILLED = RankEvidence(rank=0, exit_code=-9, exited_at=0.1)


@pytest.mark.parametrize(
    ("result", "outcome", "reason"),
    [
        (trial(of_rank(0), of_rank(1)), "passed", ""),
        (trial(of_rank(0, wrong=3), of_rank(1)), "wrong", "wrong results (3 elements)"),
        (trial(outcome="stuck"), "hung", ""),
        (trial(outcome="broken", evidence=(REFUSED,)), "failed", "rank 1: RuntimeError: Connection refused"),
        (trial(outcome="broken", evidence=(KILLED,)), "failed", "rank 0 was killed from outside (SIGKILL)"),
        (trial(outcome="stuck", lost_nodes=(1,)), "lost", ""),
        (trial(of_rank(0)), "unknown", "a rank gave no readable result"),
        (trial(outcome="stuck", duration_s=0.5), "unknown", "ddp-doctor was stopped, or got no processor time"),
        (trial().unjudged("the forkserver ended"), "unknown", "the forkserver ended"),
    ],
)
def test_trial_of_a_group_gives_its_outcome(result, outcome, reason):
    test = group_test(2, (0, 1), result, 1.5)

    assert (test.round, test.nodes, test.outcome, test.at_s) == (2, (0, 1), outcome, 1.5)
    assert test.reason.startswith(reason)
    assert (test.bytes_per_s is not None) is (outcome == "passed")
    assert test.lost_nodes == ((1,) if outcome == "lost" else ())


@pytest.mark.parametrize(("rate", "moved_each"), [(6e6, 4 << 20), (400e6, 64 << 20)], ids=["100 Mbit/s", "10 Gbit/s"])
def test_rate_of_a_slow_path_is_measured_within_the_time_of_a_trial(monkeypatch, rate, moved_each):
    moved = []

    def timed(_ctx: Any, _row: Any, size: int, iterations: int, *, warmup: int = 1) -> SizeResult:
        moved.append((iterations + warmup + 1) * size)
        us = size / rate * 1e6
        rates = {"algbw_gb_per_s": rate / 1e9, "busbw_gb_per_s": rate / 1e9}
        return SizeResult(size_bytes=size, time_us=us, min_us=us, max_us=us, iterations=iterations, wrong=0, **rates)

    monkeypatch.setattr(remedy_probe, "timed", timed)
    monkeypatch.setattr(remedy_probe, "agreed", lambda _ctx, value: value)
    reproducer = Reproducer(kind="all_reduces", size_bytes=trials.GROUP_BYTES["nccl"])
    ctx: Any = SimpleNamespace(trial=SimpleNamespace(reproducer=reproducer, settings=()), backend="nccl", env={})

    measured = remedy_probe.probe(ctx)

    assert measured.bytes_per_s == pytest.approx(rate)
    assert moved[-1] % moved_each == 0
    assert sum(moved) / rate < trials.NCCL_TRIAL_S / 3  # creating communicators takes time as well


def test_rate_of_a_group_is_the_rate_of_its_slowest_rank():
    assert group_test(0, (0, 1), trial(of_rank(0, 4e9), of_rank(1, 2e9)), 0.0).bytes_per_s == 2e9


# --- the rounds --------------------------------------------------------------------------------------


class Cluster:
    """A stand-in for the agents: groups with a ``bad`` node hang, groups with a ``dying`` node lose it."""

    def __init__(self, bad: tuple[int, ...] = (), dying: tuple[int, ...] = (), budget_s: float = 60.0) -> None:
        world = plain_world(NODES)
        self.told: list[str] = []
        self.limits: list[float] = []
        run = SimpleNamespace(
            world=world, options=Options(), until=time.monotonic() + budget_s, progress=self.told.append
        )
        self.partial, self.group = PartialRecording(), SimpleNamespace(lost=set())
        self.world, self.node_ranks = world, SimpleNamespace(run=run, lost_helper=lambda: self.helper)
        self.helper: str | None = None
        self.bad, self.dying, self.tested = bad, dying, list[tuple[int, ...]]()

    def run_groups(self, _agent: Any, groups: Any, _reproducer: Any, limit_s: float) -> list[TrialResult]:
        self.limits.append(limit_s)
        self.tested += groups
        return [self._trial(nodes) for nodes in groups]

    def _trial(self, nodes: tuple[int, ...]) -> TrialResult:
        gone = tuple(node for node in nodes if node in self.dying and len(nodes) > 1)
        if gone:
            self.group.lost.update(gone)
            return trial(ranks=nodes, outcome="stuck", lost_nodes=gone)
        if len(nodes) > 1 and not set(self.bad).isdisjoint(nodes):
            return trial(ranks=nodes, outcome="stuck")
        return trial(*(of_rank(node) for node in nodes), ranks=nodes, duration_s=0.5)


def isolated(cluster: Cluster, monkeypatch: Any) -> IsolationFact:
    agent: Any = cluster
    monkeypatch.setattr(conduct, "run_groups", cluster.run_groups)
    try:
        conduct.isolate(agent, {})
    finally:
        (reading,) = cluster.partial.readings
    assert (reading.check, reading.node, reading.status) == ("isolation", 0, Status.COLLECTED)
    return IsolationFact.model_validate(reading.fact)


def test_each_round_reports_its_groups_and_suspects(monkeypatch):
    cluster = Cluster(bad=(5,))

    fact = isolated(cluster, monkeypatch)

    assert fact.stopped == ""
    assert cluster.told[:2] == ["isolation: round 1, 8 groups of 1 node", "isolation: round 2, 1 group of 8 nodes"]
    assert "node5" in cluster.told[-1]
    assert [test.round for test in fact.tests] == sorted(test.round for test in fact.tests)


def test_a_node_that_dies_is_a_result_and_the_others_are_tested_without_it(monkeypatch):
    cluster = Cluster(dying=(5,))

    fact = isolated(cluster, monkeypatch)

    lost = [test for test in fact.tests if test.outcome == "lost"]
    assert [test.lost_nodes for test in lost] == [(5,)]
    after = [test for test in fact.tests if test.round > lost[0].round]
    assert after
    assert not any(5 in test.nodes for test in after)
    assert fact.stopped == ""


def test_exhausted_budget_is_reported_and_keeps_the_first_round(monkeypatch):
    fact = isolated(Cluster(budget_s=-1.0), monkeypatch)

    assert [test.nodes for test in fact.tests] == [(node,) for node in range(NODES)]
    assert fact.stopped == "the time budget was used up"


def test_isolation_stops_if_a_helper_of_ddp_doctor_exits(monkeypatch):
    cluster = Cluster()
    cluster.helper = "the forkserver ended"

    assert isolated(cluster, monkeypatch).stopped == "the forkserver ended"


def test_an_interrupted_isolation_keeps_its_tests(monkeypatch):
    cluster = Cluster()

    def first_round_only(*arguments: Any) -> list[TrialResult]:
        if cluster.limits:
            raise KeyboardInterrupt
        return Cluster.run_groups(cluster, *arguments)

    monkeypatch.setattr(cluster, "run_groups", first_round_only)
    with pytest.raises(KeyboardInterrupt):
        isolated(cluster, monkeypatch)

    (reading,) = cluster.partial.readings
    fact = IsolationFact.model_validate(reading.fact)
    assert len(fact.tests) == NODES
    assert fact.stopped == "it was broken off"


def test_time_limit_grows_with_the_slowest_passing_group():
    def limit_s(longest_s: float) -> float:
        return conduct.limit_s([GroupTest(round=0, nodes=(0,), outcome="passed", duration_s=longest_s)], World())

    assert [limit_s(seconds) for seconds in (0.4, 2.0, 60.0)] == [6.0, 10.0, 30.0]
