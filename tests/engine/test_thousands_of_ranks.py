"""Recordings of many nodes are evaluated and shown in seconds, and one bad node among them is found and reported.

64 nodes with 512 ranks, and half of them in runs with a fault; tests/bench measures 4,096 nodes against the limit.
"""

import io
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.engine.verdict import report
from ddp_doctor.model.choices import Verdict
from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.render import screen, terminal
from tests import simulated
from tests.simulated import GPUS

NODES = 64
HALF = NODES // 2
BAD = 21
#: The bar is 10 s for 64 times as many nodes; work that grows with the square of the ranks misses this.
LIMIT_S = 2.0


def judged(recording: Recording) -> tuple[Report, list[str]]:
    diagnosis = diagnose(recording)
    assert diagnosis.failures == ()
    made, stream = report(recording, diagnosis, CHECKS), io.StringIO()
    terminal.show(made, recording, screen.console(stream, width=120))
    return made, stream.getvalue().splitlines()


def on_bad_node(check: str, change: Callable[[dict[str, Any]], None]) -> simulated.Change:
    def apply(this: str, node: int, _rank: int | None, fact: dict[str, Any]) -> None:
        if this == check and node == BAD:
            change(fact)

    return apply


def everywhere(check: str, change: Callable[[dict[str, Any]], None]) -> simulated.Change:
    def apply(this: str, _node: int, _rank: int | None, fact: dict[str, Any]) -> None:
        if this == check:
            change(fact)

    return apply


def lose_gpu_3(fact: dict[str, Any]) -> None:
    fact["gpus"][3]["error"] = "gpu_is_lost"


def keep_own_parameters(fact: dict[str, Any]) -> None:
    fact["parameters_off"] = [{"name": "weight", "expected": 1.0, "got": 9.0}]


def multiply_slowly(fact: dict[str, Any]) -> None:
    fact["matmul_tflop_per_s"] = {"median": 512.0, "least": 509.0, "most": 515.0, "repetitions": 7}


def stop(nodes: int, *at: int) -> TrialRecord:
    whole = simulated.trial(nodes, 2, outcome="stuck", judged_check="allreduce", waited_s=11.0)
    stuck = simulated.step(2, left_at=None)
    evidence = tuple(
        one.model_copy(
            update={
                "done": False,
                "exit_code": None,
                "state": "S",
                "check": "allreduce",
                "steps": one.steps if one.node in at else (*one.steps, stuck),
            }
        )
        for one in whole.evidence
    )
    return whole.model_copy(update={"evidence": evidence})


def test_a_healthy_run_of_many_nodes_is_healthy_in_seconds():
    recording = simulated.recording(NODES)
    started = time.process_time()

    made, lines = judged(recording)

    assert time.process_time() - started < LIMIT_S
    assert (made.verdict, made.findings) == (Verdict.HEALTHY, ())
    assert made.summary == "Healthy: 512 ranks on 64 nodes passed over nccl with a built-in model (13.6K parameters)."
    assert len(lines) < 36


@pytest.mark.parametrize(
    ("change", "code", "kind"),
    [
        (on_bad_node("gpus", lose_gpu_3), "DD304", "gpu"),
        (on_bad_node("host", lambda fact: fact.update(shm_free_bytes=0)), "DD221", "node"),
        (on_bad_node("software", lambda fact: fact.update(torch_problem="torch is missing")), "DD201", "node"),
        (on_bad_node("env_vars", lambda fact: fact["variables"].update(NCCL_IB_DISABLE="true")), "DD121", "setting"),
        (on_bad_node("buffers", keep_own_parameters), "DD712", "rank"),
        (on_bad_node("allreduce", lambda fact: fact.update(repeatable=False)), "DD602", "rank"),
        (on_bad_node("gpu_speed", multiply_slowly), "DD801", "gpu"),
    ],
    ids=["GPU", "shared memory", "torch", "variable", "DDP", "all-reduce", "slow GPUs"],
)
def test_one_bad_node_of_many_is_the_only_one_named(change: simulated.Change, code: str, kind: str):
    started = time.process_time()

    made, lines = judged(simulated.recording(HALF, change))

    assert time.process_time() - started < LIMIT_S / 2
    (found,) = made.findings
    assert (found.code, {one.kind for one in found.culprits}) == (code, {kind})
    assert {one.node for one in found.culprits} == {f"node{BAD}"}
    assert f"node{BAD}" in found.title
    assert len(lines) < 60


@pytest.mark.parametrize("bad", [(BAD,), tuple(range(0, NODES, 2))], ids=["one", "half of them"])
def test_nodes_whose_ranks_never_enter_are_one_finding(bad: tuple[int, ...]):
    recording = simulated.recording(NODES).model_copy(update={"trials": (stop(NODES, *bad),)})
    started = time.process_time()

    with patch.object(Culprit, "identity", autospec=True, side_effect=Culprit.identity) as identified:
        made, lines = judged(recording)

    assert time.process_time() - started < LIMIT_S
    (found,) = made.findings
    assert found.code == "DD610"
    assert found.title.startswith(f"All {len(bad) * GPUS} ranks of node{bad[0]}")
    assert len(found.culprits) == len(bad) * GPUS
    assert identified.call_count == len(found.culprits), "once each, not once for each of their nodes"
    assert max(map(len, lines)) < 400


@pytest.mark.parametrize(
    "change",
    [
        everywhere("gpus", lose_gpu_3),
        everywhere("buffers", keep_own_parameters),
        everywhere("allreduce", lambda fact: fact["wrong"].append(
            {"dtype": "int64", "op": "sum", "elements": 4096, "expected": 15.0, "got": 11.0, "blamed": [2]}
        )),
        everywhere("process_group", lambda fact: fact.update(gpu_uuid="GPU-0")),
        everywhere("software", lambda fact: fact.update(nccl_fault="libnccl.so.2 was not found")),
    ],
    ids=["GPUs", "DDP", "all-reduce", "one GPU", "NCCL"],
)  # fmt: skip
def test_a_fault_on_all_of_many_nodes_is_one_finding_that_fits_on_a_screen(change: simulated.Change):
    started = time.process_time()

    made, lines = judged(simulated.recording(HALF, change))

    assert time.process_time() - started < LIMIT_S / 2
    assert (made.verdict, len(made.findings)) == (Verdict.UNHEALTHY, 1)
    assert len(lines) < 70
    assert max(map(len, lines)) < 500
