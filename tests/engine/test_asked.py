"""A check that an option requests and that did not run is never healthy, live or replayed; others are only listed."""

from collections.abc import Sequence
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.plan import make_plan
from ddp_doctor.facts.cluster import BaselineFact, HeldAgainst
from ddp_doctor.facts.collectives import AxisGroup, GroupTest, IsolationFact, MeshFact
from ddp_doctor.facts.ddp.step_time import ArgumentTrial, StepTimeFact
from ddp_doctor.facts.node.gpus import Gpu, GpusFact, NvmlError
from ddp_doctor.facts.node.host import Host
from ddp_doctor.features.model.user_model.facts import UserModel
from ddp_doctor.knowledge.ddp.buckets import Curve
from ddp_doctor.model.choices import Backend, Status, UsageError, Verdict
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import Axis, NotRun, Options, Recording, TraceAdvice, World
from ddp_doctor.model.report import Report
from tests.readings import collected, numbered_nodes, replayed

HOST = Host(cpus=8)
GPUS = GpusFact(gpus=tuple(Gpu(index=index) for index in range(8)), visible=tuple(range(8)), used=tuple(range(8)))
BROKEN = GPUS.model_copy(update={"nvml_error": NvmlError(code="x"), "hidden": True})  # information, in a prolog
MODEL = UserModel(model="net:make", device="cpu", world_size=2, has_batch=True, trainable=1)
HELD = BaselineFact(
    file="b.json",
    runs=9,
    compared=(
        HeldAgainst.model_validate(
            {"name": "allreduce_busbw", "unit": "B/s", "value": 1e9, "median": 1e9, "mad": 1e7, "worst": 9e8, "runs": 9}
        ),
    ),
)


def read(check: str, fact: Fact | str, rank: int | None = None, node: int = 0) -> Reading:
    if isinstance(fact, str):
        return Reading(check=check, status=Status.SKIPPED, reason=fact, rank=rank, node=node)
    return collected(check, fact, node, rank=rank)


def judged(*readings: Reading, left_out: Sequence[NotRun] = (), nnodes: int = 1, **options: Any) -> Report:
    recording = Recording(
        world=World(nnodes=nnodes, nproc_per_node=2, world_size=2 * nnodes, nodes=numbered_nodes(1)),
        options=Options(**options),
        readings=(read("host", HOST), *readings),
        not_run=tuple(left_out),
    )
    return app.judge(replayed(recording)).report


MESH = (Axis(name="dp", size=2), Axis(name="shard", size=4))
GROUP = AxisGroup(axis="dp", members=(0, 1), sources={0: 1, 1: 1})
TINY = TraceAdvice(code="DDT120", at_most=0.5, setting="bucket_cap_mb")
FROM_TRACE = {"from_trace": "trace.json", "advice": (TINY,)}
UNTRIED = StepTimeFact(
    ranks=2,
    device="cpu",
    parameters=1,
    gradient_bytes=4,
    iterations=1,
    rounds=(),
    curve=Curve(points=((4, 1e-4),)),
    arguments=(ArgumentTrial(advice=TINY, not_tried="time was short"),),
)
PASSED = GroupTest(round=0, nodes=(0,), outcome="passed")
UNKNOWN = GroupTest(round=0, nodes=(0,), outcome="unknown", reason="node1 handed nothing in")
UNKNOWN_WHOLE = GroupTest(round=1, nodes=(0, 1), outcome="unknown", reason="the doctor was starved of processor time")
NO_BATCH = "no forward was run; let net:make return (model, make_batch)"
BUDGET = "does not fit the budget of 1 s; --budget 3 is enough for all"
PREFIX = "Unsure: requested but not run: "


@pytest.mark.parametrize(
    ("options", "readings", "left_out", "says"),
    [
        ({"model": "net:make"}, [read("user_model", MODEL.model_copy(update={"has_batch": False}), 0)], [],
         f"--model net:make ({NO_BATCH})"),
        ({"model": "net:make"}, [], [NotRun(check="user_model", reason=BUDGET)], f"--model net:make ({BUDGET})"),
        ({"model": "net:make"}, [], [], "--model net:make (it was not reached)"),
        ({"model": "net:make"}, [read("user_model", "no time", 0)], [], "--model net:make (no time)"),
        ({"model": "net:make"}, [read("user_model", MODEL.model_copy(update={"stopped": "time"}), 0)], [],
         "--model net:make (no synchronized step was run; let make_batch return a smaller batch)"),
        ({"require_gpus": 8, "command": "prolog"}, [read("gpus", BROKEN)], [],
         "--require-gpus 8 (the GPUs could not be counted)"),
        ({"require_gpus": 8}, [], [NotRun(check="gpus", reason="not selected by --only")],
         "--require-gpus 8 (not selected by --only)"),
        ({"require_gpus": 9, "ignore": ("DD303",)}, [read("gpus", GPUS)], [], "--require-gpus 9 (8 were counted)"),
        ({"require_gpus": 8, "command": "prolog"}, [], [], "--require-gpus 8 (the GPUs could not be counted)"),
        ({"only": ("host", "p2p")}, [read("p2p", "needs 2 ranks")], [], "--only p2p (needs 2 ranks)"),
        ({"only": ("host", "gpus")}, [Reading(check="gpus", status=Status.ABSENT, reason="no GPU")], [],
         "--only gpus (no GPU)"),
        ({"only": ("host", "p2p")}, [], [NotRun(check="p2p", reason=BUDGET)], f"--only p2p ({BUDGET})"),
        ({"only": ("host", "p2p", "rdma")}, [read("p2p", "this"), read("rdma", "that")], [],
         "--only p2p (this); --only rdma (that)"),
        ({"backend": Backend.NCCL}, [read("gpus", GPUS)], [],
         "--backend nccl (no rank ran over NCCL; select a check of ranks, such as allreduce)"),
        ({"baseline": "b.json"}, [read("baseline", "nothing that was measured here is in it")], [],
         "--baseline b.json (nothing that was measured here is in it)"),
        ({"model": "net:make", "compile": True},
         [read("user_model", MODEL, 0), read("compile", "needs torch 2.6", 0)], [], "--compile (needs torch 2.6)"),
        (FROM_TRACE, [read("step_time", UNTRIED, 0), read("step_time", UNTRIED, 1)], [],
         "--from-trace trace.json (bucket_cap_mb: time was short)"),
        (FROM_TRACE, [], [NotRun(check="step_time", reason="needs --level standard")],
         "--from-trace trace.json (needs --level standard)"),
        ({"mesh": MESH}, [read("mesh", "no time", 0)], [], "--mesh dp=2,shard=4 (no time)"),
        ({"mesh": MESH}, [], [NotRun(check="mesh", reason=BUDGET)], f"--mesh dp=2,shard=4 ({BUDGET})"),
        ({"isolate": True}, [], [NotRun(check="isolation", reason=BUDGET)], f"--isolate ({BUDGET})"),
        ({"isolate": True}, [], [], "--isolate (it was not reached)"),
        ({"isolate": True}, [read("isolation", IsolationFact(tests=(PASSED,), stopped="time was short"))], [],
         "--isolate (time was short)"),
        ({"isolate": True}, [read("isolation", IsolationFact(tests=(UNKNOWN,)))], [],
         "--isolate (node1 handed nothing in)"),
        ({"isolate": True}, [read("isolation", IsolationFact(tests=(PASSED, UNKNOWN_WHOLE)))], [],
         "--isolate (the doctor was starved of processor time)"),
        ({"nnodes": 2}, [], [], "--nnodes 2 (nothing was read on node rank 1)"),
    ],
)  # fmt: skip
def test_requested_check_that_did_not_run_is_unsure_with_advice(
    options: dict[str, Any], readings: list[Reading], left_out: list[NotRun], says: str
):
    report = judged(*readings, left_out=left_out, **options)

    assert (report.verdict, report.exit_code) == (Verdict.UNSURE, 3)
    assert report.summary == f"{PREFIX}{says}{'. Ignored: DD303' if 'ignore' in options else ''}."


@pytest.mark.parametrize(
    ("options", "readings"),
    [
        ({"model": "net:make"}, [read("user_model", MODEL, 0), read("user_model", MODEL, 1)]),
        ({"model": "net:make"}, [read("user_model", MODEL, 0), read("compile", "net:make is not compiled", 0)]),
        ({"require_gpus": 8}, [read("gpus", GPUS)]),
        ({"require_gpus": 0}, []),
        ({"require_gpus": 8, "command": "prolog"}, [read("gpus", GPUS.model_copy(update={"visible": (0,)}))]),
        ({"only": ("host",)}, [read("gpus", "not asked for")]),
        ({"only": ("host",), "backend": Backend.GLOO}, []),
        ({"backend": Backend.NCCL}, [read("gpus", GPUS), read("user_model", MODEL, 0)]),
        ({"baseline": "b.json"}, [read("baseline", HELD)]),
        ({"mesh": MESH}, [read("mesh", MeshFact(mesh=MESH, made=True, groups=(GROUP,)), rank) for rank in range(2)]),
        ({"isolate": True}, [read("isolation", IsolationFact(tests=(PASSED, UNKNOWN)))]),
        ({"nnodes": 2}, [read("host", HOST, node=1)]),
        ({}, [read("p2p", "needs 2 ranks"), Reading(check="gpus", status=Status.ABSENT, reason="no GPU")]),
    ],
)
def test_requested_checks_that_ran_are_healthy_without_the_unrequested(
    options: dict[str, Any], readings: list[Reading]
):
    assert judged(*readings, **options).summary.startswith("Healthy")


def test_check_that_ran_only_partly_is_shown_as_skipped():
    report = judged(read("user_model", MODEL.model_copy(update={"has_batch": False}), 0), model="net:make")
    (own,) = (check for check in report.checks if check.id == "user_model")

    assert (own.status.value, own.reason) == ("skipped", NO_BATCH)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ("host",)}, "add user_model to --only"),
        ({"skip": ("user_model", "step_time")}, "remove user_model from --skip"),
    ],
)
def test_model_that_other_options_exclude_is_refused_before_the_start(options: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=f"--model 'net:make' would not be tested; {words}, or omit --model"):
        make_plan(Options(model="net:make", **options), CHECKS)


@pytest.mark.parametrize("options", [{"only": ("allreduce",)}, {"skip": ("gpus", "software")}, {"budget_s": 1.0}])
def test_gpu_use_of_ranks_is_checked_whenever_ranks_start(options: dict[str, Any]):
    planned = [check.id for check in make_plan(Options(**options), CHECKS).checks]

    assert {"gpus", "software"} <= {*planned}
    assert planned == [check.id for check in CHECKS if check.id in planned]


def test_gpus_are_checked_without_ranks_if_selected_or_required():
    def planned(**options: Any) -> list[str]:
        return [check.id for check in make_plan(Options(only=("host",), **options), CHECKS).checks]

    assert planned() == ["host"]
    assert "gpus" in planned(require_gpus=1)
    assert "gpus" in planned(backend=Backend.NCCL)


def test_unselected_gpus_have_findings_only_if_ranks_cannot_use_them():
    hot = Gpu(index=0, ecc_volatile_uncorrected=3)
    seen = GPUS.model_copy(update={"gpus": (hot,), "visible": (0,), "used": (0,)})
    unselected = [NotRun(check="gpus", reason="left out by --skip")]

    def told(fact: GpusFact, left_out: Sequence[NotRun]) -> list[str]:
        return [finding.code for finding in judged(read("gpus", fact), left_out=left_out).findings]

    assert told(seen, ()) == ["DD307"]
    assert told(seen, unselected) == []
    blind = seen.model_copy(update={"visible": (), "rejected": "9"})
    assert told(blind, unselected) == ["DD311"]
    shown = judged(read("gpus", seen), left_out=unselected).checks
    assert [(check.id, check.status.value, check.reason) for check in shown][1:] == [
        ("gpus", "skipped", "left out by --skip")
    ]
