"""The report on checks that passed on some nodes or ranks and not on others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_doctor.app import recordings
from ddp_doctor.checks.collectives import p2p
from ddp_doctor.engine.diagnose import Diagnosis
from ddp_doctor.engine.plan import TOO_DEAR, make_plan
from ddp_doctor.engine.verdict import report as make_report
from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.features.jobs.attach.evaluation import summary as job_summary
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Backend, CheckStatus, Command, Status, Verdict, Where
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import NotRun, Options, Recording, World
from ddp_doctor.model.report import Report
from ddp_doctor.render.about import lines
from tests.readings import collected, plain_world
from tests.recordings import codes, raw


class Light(Fact):
    KIND = "light/1"


CHECKS = tuple(
    Check(id=name, title=f"The {name}", where=where, probe=lambda _: Light(), facts=(Light,))
    for name, where in (("lamp", Where.NODE), ("ring", Where.RANK))
)


def _reading(status: Status, node: int, rank: int | None = None) -> Reading:
    fact = Light().recorded() if status is Status.COLLECTED else None
    reason = None if fact else f"it is {status.value}"
    check = "lamp" if rank is None else "ring"
    return Reading(check=check, status=status, node=node, rank=rank, fact=fact, reason=reason)


def _report(nodes: int, *readings: Reading, nproc: int = 2, checks: tuple[Check, ...] = CHECKS) -> Report:
    world = plain_world(nodes, nproc, "nccl")
    return make_report(Recording(world=world, readings=readings), Diagnosis(()), checks)


def test_probe_that_fails_on_one_of_three_nodes_is_unsure_and_names_it():
    report = _report(3, *(_reading(Status.FAILED if node == 1 else Status.COLLECTED, node) for node in range(3)))

    (lamp,) = report.checks
    assert (lamp.status, lamp.reason) == (CheckStatus.FAILED, "on node1: it is failed")
    assert report.verdict is Verdict.UNSURE
    assert report.summary == "Unsure: lamp gave no result on node1: it is failed."


@pytest.mark.parametrize(
    ("others", "code", "words"),
    [
        (Status.COLLECTED, 2, "Error: cannot use --model : it is failed."),
        (Status.SKIPPED, 2, "Error: cannot use --model : it is failed."),
        (Status.FAILED, 3, "Unsure: nothing could be measured: it is failed."),
    ],
)
def test_model_that_no_rank_can_use_is_a_usage_error_unless_a_check_failed(others: Status, code: int, words: str):
    ranks = [_reading(Status.FAILED, 0, rank=rank).model_copy(update={"misused": True}) for rank in range(2)]
    report = _report(1, _reading(others, 0), *ranks)

    assert (report.verdict, report.exit_code) == (Verdict.UNSURE, code)
    assert report.summary.startswith(words)


def test_failure_on_every_node_needs_no_names():
    report = _report(2, *(_reading(Status.TIMED_OUT, node) for node in range(2)), _reading(Status.COLLECTED, 0, 0))

    assert report.checks[0].reason == "it is timed_out"
    assert report.summary.startswith("Unsure: lamp gave no result")


def test_untested_ranks_are_shown_with_their_host():
    states = [Status.COLLECTED, Status.COLLECTED, Status.TIMED_OUT, Status.COLLECTED]
    report = _report(2, *(_reading(state, rank // 2, rank) for rank, state in enumerate(states)))

    assert report.checks[0].reason == "on rank 2 (node1, CUDA device 0): it is timed_out"


def test_passed_check_names_the_nodes_without_a_result():
    report = _report(3, *(_reading(Status.ABSENT if node == 2 else Status.COLLECTED, node) for node in range(3)))

    (lamp,) = report.checks
    assert (lamp.status, lamp.reason) == (CheckStatus.PASSED, "on node2: it is absent")
    assert report.summary == "Healthy: 1 check passed on 3 nodes."


@pytest.mark.parametrize("status", [Status.ABSENT, Status.SKIPPED])
def test_check_absent_on_all_nodes_is_skipped_with_only_its_reason(status: Status):
    report = _report(2, *(_reading(status, node) for node in range(2)))

    assert (report.checks[0].status, report.checks[0].reason) == (CheckStatus.SKIPPED, f"it is {status.value}")


def test_name_of_a_single_node_is_omitted():
    report = _report(1, _reading(Status.COLLECTED, 0), _reading(Status.FAILED, 0, 1), _reading(Status.COLLECTED, 0, 0))

    assert report.checks[1].reason == "it is failed"
    assert report.summary.startswith("Unsure: ring gave no result")


def test_thousands_of_ranks_are_counted():
    readings = [_reading(Status.TIMED_OUT if rank % 2 else Status.COLLECTED, rank // 8, rank) for rank in range(8192)]

    report = _report(1024, *readings, nproc=8)

    assert len(report.summary) < 250
    assert len(report.checks[0].reason or "") < 250


def test_prolog_reports_no_ranks_and_no_backend():
    seen = Recording(world=World(nproc_per_node=2, world_size=2), options=Options(command="prolog"))
    world = make_report(seen, Diagnosis(()), CHECKS).world

    assert world is not None
    assert (world.nnodes, world.nproc_per_node, world.world_size, world.backend) == (1, 0, 0, "none")


@pytest.mark.parametrize(
    ("backend", "status", "exit_code"),
    [(Backend.NCCL, Status.ABSENT, 2), (Backend.NCCL, Status.FAILED, 3), (Backend.AUTO, Status.ABSENT, 0)],
)
def test_nccl_without_any_gpu_on_the_nodes_is_a_usage_error(backend, status, exit_code):
    gpus = [Reading(check="gpus", status=status, node=node, reason="no NVIDIA GPU") for node in range(2)]
    readings = (_reading(Status.COLLECTED, 0), *gpus)
    recording = Recording(world=World(nnodes=2), options=Options(backend=backend), readings=readings)
    report = make_report(recording, Diagnosis(()), CHECKS)

    assert report.exit_code == exit_code
    assert ("gpu require GPUs: no node has one" in report.summary) == (exit_code == 2)


def test_healthy_verdict_names_checks_skipped_by_the_budget():
    left_out = (
        NotRun(check="connectivity", reason="does not fit the budget of 1 s (needs 0.6 s)"),
        NotRun(check="p2p", reason="left out by --skip"),
    )
    options = Options(budget_s=1.0)
    recording = Recording(options=options, readings=(_reading(Status.COLLECTED, 0),), not_run=left_out)
    report = make_report(recording, Diagnosis(()), CHECKS)

    assert report.verdict is Verdict.HEALTHY
    assert report.summary == "Healthy: 1 check passed on this node. Not tested within the budget of 1 s: connectivity."


def test_healthy_verdict_of_one_rank_lists_communication_as_untested():
    assert _report(1, _reading(Status.COLLECTED, 0, 0), nproc=1).summary == (
        "Healthy: 1 rank on 1 node passed over nccl. Nothing between ranks was tested, because there is only one."
    )
    assert "between ranks" not in _report(1, _reading(Status.COLLECTED, 0, 0)).summary


def test_healthy_verdict_counts_unmeasured_pairs():
    pair = PairResult(peer=1, wrong_bytes=0, latency_us=20.0, bandwidth_gb_per_s=25.0, size_bytes=1 << 20)
    report = _of_pairs(P2pFact(pairs=(pair,), not_measured=2275))

    assert report.verdict is Verdict.HEALTHY
    assert report.summary.endswith("passed over nccl. 2275 pairs of ranks were not measured because time ran out.")


def test_unmeasured_pairs_of_ranks_do_not_pass():
    report = _of_pairs(P2pFact(pairs=()))

    assert [(check.status, check.reason) for check in report.checks] == [
        (CheckStatus.SKIPPED, "no pair of ranks was measured")
    ]
    assert (report.verdict, report.summary) == (Verdict.UNSURE, "Unsure: nothing could be measured.")


def _of_pairs(*facts: P2pFact) -> Report:
    readings = (collected("p2p", fact, rank, rank=rank) for rank, fact in enumerate(facts))
    return _report(2, *readings, nproc=1, checks=(p2p.CHECK,))


def test_check_skipped_for_its_cost_has_the_expected_reason():
    dear = replace(CHECKS[1], cost_s=3.0)
    plan = make_plan(Options(budget_s=1.0), (CHECKS[0], dear))

    assert [one.check for one in plan.not_run] == ["ring"]
    assert plan.not_run[0].reason.startswith(TOO_DEAR)


@pytest.mark.parametrize("situation", ["gpus/one-lost", "hang/all-ranks-in-one-collective"])
def test_recording_of_a_newer_command_keeps_its_name_and_is_evaluated(situation: str, tmp_path: Path):
    newer = raw(situation)
    newer["options"] = {**newer.get("options", {}), "command": "rehearse", "of_a_newer_release": 1}
    file = tmp_path / "newer.json"
    file.write_text(json.dumps(newer))

    outcome = recordings.replay(file)

    assert outcome.recording.command is Command.OTHER
    assert json.loads(outcome.recording.model_dump_json())["options"]["command"] == "rehearse"
    assert outcome.report.verdict is Verdict.UNHEALTHY
    assert [finding.code for finding in outcome.report.findings] == codes(situation)
    about = lines(outcome.report, outcome.recording)
    assert next(about)[1].endswith(", rehearse")


@pytest.mark.parametrize(
    ("kinds", "begins"),
    [
        ([("info", "likely"), ("error", "likely")], "Stuck: 1"),
        ([("error", "possible"), ("error", "proved")], "Stuck: 1"),
        ([("info", "likely"), ("error", "possible")], "Cannot tell: 1"),
        ([("info", "likely"), ("warning", "likely")], "Cannot tell: 1"),
        ([("info", "likely")], "Running: 0"),
    ],
)
def test_summary_of_attach_begins_with_the_worst_certain_finding(kinds, begins):
    findings = tuple(
        Finding(code="DDJ301", name="x", severity=severity, confidence=confidence, title=f"{number}")
        for number, (severity, confidence) in enumerate(kinds)
    )
    live = Recording(options=Options(command="attach"))
    assert job_summary(live, Verdict.UNSURE, Diagnosis(findings)).startswith(begins)
