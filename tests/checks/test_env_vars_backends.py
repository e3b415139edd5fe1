"""Torch's two classes for "nccl": findings about variables that only the other class reads."""

from __future__ import annotations

import pytest

from ddp_doctor import app
from ddp_doctor.checks.node.env_vars import CHECK
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from tests.readings import collected, findings_of, plain_world

TORCH_215 = Software(
    python="3.11.7",
    machine="x86_64",
    torch_version="2.15.0+cu132",
    torch_looks_backends_up=True,
    torch_backends=("gloo", "nccl", "nccl-legacy", "nccl2"),
    torch_nccl2_switch="0",
    nccl_loaded="2.30.7",
)
TORCH_213 = TORCH_215.model_copy(
    update={
        "torch_version": "2.13.0+cu130",
        "torch_looks_backends_up": False,
        "torch_backends": (),
        "torch_nccl2_switch": None,
        "nccl_loaded": "2.29.7",
    }
)
HEARTBEAT = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1200"}


def recording(env: dict[str, str], software: Software | None, *ranks: Fact, backend: str = "nccl") -> Recording:
    facts: list[tuple[str, Fact]] = [("env_vars", EnvVars(variables=env))]
    facts += [("software", software)] if software else []
    facts += [("process_group", rank) for rank in ranks]
    readings = tuple(collected(check, fact) for check, fact in facts)
    return Recording(world=plain_world(1, backend=backend) if backend else None, readings=readings)


def findings(env: dict[str, str], software: Software | None, *ranks: Fact, backend: str = "nccl") -> list[Finding]:
    return findings_of(CHECK, recording(env, software, *ranks, backend=backend))


def only(env: dict[str, str], software: Software | None, *ranks: Fact, backend: str = "nccl") -> Finding:
    (finding,) = findings(env, software, *ranks, backend=backend)
    return finding


# --- DD126 -------------------------------------------------------------------------------------------------


def test_env_command_warns_without_starting_ranks():
    seen = recording(HEARTBEAT, TORCH_215, backend="gloo")
    seen = seen.model_copy(update={"options": Options(command="env")})
    assert [(one.code, one.severity) for one in app.judge(seen).report.findings] == [("DD126", Severity.WARNING)]


# --- what the other rules say beside it --------------------------------------------------------------------


def codes(env: dict[str, str], software: Software | None) -> list[str]:
    return sorted({one.code for one in findings(env, software)})


def test_variables_that_nccl2_ignores_have_only_the_unused_finding():
    on_nccl2 = {"TORCH_NCCL_DESYNC_DEBUG": "1", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "ten"}
    assert codes(on_nccl2, TORCH_215) == ["DD126"]
    assert codes(on_nccl2, TORCH_213) == ["DD122", "DD123"]
    assert codes({**HEARTBEAT, "TORCH_NCCL_BLOCKING_WAIT": "1"}, TORCH_215) == ["DD124", "DD126"]
    assert codes({**HEARTBEAT, "TORCH_NCCL_BLOCKING_WAIT": "1"}, TORCH_213) == ["DD115", "DD124"]


@pytest.mark.parametrize("name", ["TORCH_DIST_NAN_CHECK", "TORCH_NCCL_TEARDOWN_ON_TIMEOUT", "TORCH_DIST_USE_NCCL2"])
def test_a_variable_of_a_newer_torch_is_not_read_yet(name):
    finding = only({name: "1"}, TORCH_213)
    assert (finding.code, finding.severity) == ("DD114", Severity.INFO)
    assert "has no effect in torch 2.13.0" in finding.title


def test_variable_removed_in_a_newer_torch_is_reported_with_the_release():
    finding = only({"TORCH_NCCL_AVOID_RECORD_STREAMS": "0"}, TORCH_215)
    assert (finding.code, finding.severity) == ("DD113", Severity.INFO)
    assert finding.title == ("TORCH_NCCL_AVOID_RECORD_STREAMS has no effect in torch 2.15.0: removed after torch 2.14")
    assert only({"TORCH_NCCL_AVOID_RECORD_STREAMS": "0"}, TORCH_213).severity is Severity.INFO


def test_env_names_the_class_that_reads_a_variable():
    from ddp_doctor.app.inspection import judge_settings

    report = judge_settings(recording(HEARTBEAT, TORCH_215, backend="")).report
    (row,) = [one for one in report.model_dump()["settings"] if one["name"] in HEARTBEAT]
    assert row["meaning"].endswith("Only torch's older class for NCCL reads it, nccl-legacy.")
    assert [one.code for one in app.judge(recording(HEARTBEAT, TORCH_215, backend="")).report.findings] == ["DD126"]
