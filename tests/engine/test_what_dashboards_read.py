"""The report fields that programs use to distinguish runs, nodes and faults."""

import json

import pytest

from ddp_doctor.app.outcome import blank
from ddp_doctor.engine.plan import Plan
from ddp_doctor.features.lint.linting import lint_bytes
from ddp_doctor.features.lint.rules import RULES as LINT_RULES
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, CulpritKind, Finding, MissingNode
from ddp_doctor.model.recording import Job, Options
from ddp_doctor.model.report import finished_at
from tests.recordings import judged


@pytest.mark.parametrize(
    ("situation", "verdicts"),
    [
        ("software/gpu-nodes-in-order", {"healthy"}),
        ("gpus/one-lost", {"unhealthy"}),
        ("software/driver-too-old", ["healthy", "unhealthy"]),
        ("connectivity/one-path-dropped", ["healthy", "unsure", "unsure", "healthy"]),
        ("roll_call/node-of-another-release", ["unsure", "unsure"]),
        ("hang/nccl2-nobody-leaves-init-of-two-nodes", ["unsure", "unsure"]),
    ],
)
def test_each_node_has_a_verdict_and_one_of_two_suspects_is_not_unhealthy(
    situation: str, verdicts: list[str] | set[str]
):
    report = judged(situation).report
    found = [node.verdict.value for node in report.nodes]
    assert (set(found) if isinstance(verdicts, set) else found) == verdicts
    for node in report.nodes:
        if node.verdict.value == "unhealthy":
            assert set(node.findings) & {finding.fingerprint for finding in report.findings}


def found(title: str = "GPU 3 is lost", **culprit: object) -> Finding:
    return Finding(
        code="DD304",
        name="gpu-lost",
        severity=Severity.ERROR,
        confidence=Confidence.PROVED,
        title=title,
        culprits=(Culprit.model_validate({"kind": "gpu", "node": "node1"} | culprit),),
    )


UUID = "GPU-8932f933-d72c-4106-c12f-20bd9faed9f6"


def test_fingerprint_of_a_fault_is_independent_of_its_texts_and_numbers():
    first = found(node_rank=1, rank=11, gpu=3, name=f"GPU 3 ({UUID}, 0000:61:00.0)")
    later = found("The GPU with index 2 fell off the bus", node_rank=0, gpu=2, name=UUID)
    assert first.fingerprint == later.fingerprint
    assert len(first.fingerprint) == 16
    assert json.loads(first.model_dump_json())["fingerprint"] == first.fingerprint
    assert Finding.model_validate_json(first.model_dump_json()) == first


@pytest.mark.parametrize(
    "other",
    [
        found(gpu=3, name=UUID, node="node2"),
        found(gpu=3, name=UUID.replace("8932f933", "8932f934")),
        found(gpu=3, name=UUID).model_copy(update={"code": "DD305"}),
        found(gpu=3, name=UUID).model_copy(update={"missing": (MissingNode(node="node3"),)}),
        found(kind="nic", name="mlx5_3"),
        found(kind="setting", name="NCCL_DEBUG"),
    ],
)
def test_another_fault_or_culprit_has_another_fingerprint(other: Finding):
    assert other.fingerprint != found(gpu=3, name=UUID).fingerprint


@pytest.mark.parametrize(
    ("kind", "name", "later"), [("file", "train.py:12", "train.py:15"), ("nic", "mlx5_3", "mlx5_3 (0000:18:00.0)")]
)
def test_moved_line_does_not_change_the_fingerprint(kind: CulpritKind, name: str, later: str):
    assert found(kind=kind, name=name).fingerprint == found(kind=kind, name=later).fingerprint


def test_fingerprint_of_a_pair_is_the_same_from_both_ends():
    there = found(kind="pair", node="a", rank=0, peer_node="b", peer_rank=8, name="eth0")
    back = found(kind="pair", node="b", rank=8, peer_node="a", peer_rank=0, name="eth0")
    assert there.fingerprint == back.fingerprint


def test_finding_in_a_script_keeps_its_fingerprint_if_lines_are_inserted_above():
    text = "import torch.distributed as dist\ndist.init_process_group()\nif dist.get_rank() == 0:\n    dist.barrier()\n"
    before = lint_bytes("train.py", text.encode(), LINT_RULES).findings
    after = lint_bytes("train.py", f"# a line\n{text}".encode(), LINT_RULES).findings
    assert before
    assert [finding.line + 1 for finding in before] == [finding.line for finding in after]
    assert [finding.fingerprint for finding in before] == [finding.fingerprint for finding in after]


def test_page_of_a_finding_is_the_command_that_explains_it():
    assert judged("gpus/one-lost").report.findings[0].page == "ddp-doctor explain DD304"


@pytest.mark.parametrize(
    ("env", "job"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "4711"}, Job(scheduler="slurm", id="4711")),
        ({"PBS_JOBID": "12[3].head"}, Job(scheduler="pbs", id="12[3].head")),
        ({"LSB_JOBID": "8"}, Job(scheduler="lsf", id="8")),
        ({"FLUX_JOB_ID": "\u0192A"}, Job(scheduler="flux", id="\u0192A")),
        ({"SLURM_JOB_ID": "4 7\x1b[2J"}, None),
    ],
)
def test_the_job_of_the_scheduler_is_recorded(env: dict[str, str], job: Job | None):
    assert blank(Options(), Plan(()), env).job == job


@pytest.mark.parametrize(
    ("started", "duration_s", "finished"),
    [
        ("2026-11-23T23:59:58Z", 2.4, "2026-11-24T00:00:01Z"),
        ("2026-11-23T10:00:00+02:00", 0.0, "2026-11-23T10:00:00+02:00"),
        ("", 3.0, ""),
        ("yesterday", 3.0, ""),
        ("2026-11-23T10:00:00Z", 1e300, ""),
    ],
)
def test_end_of_a_run_is_its_start_plus_its_duration(started: str, duration_s: float, finished: str):
    assert finished_at(started, duration_s) == finished
