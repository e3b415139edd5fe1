"""Torch's two classes behind "nccl": what is said of variables that only the other one reads."""

from __future__ import annotations

import pytest

from ddp_doctor import app
from ddp_doctor.checks.node.env_vars import CHECK
from ddp_doctor.facts.collectives import ProcessGroupFact
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
TORCH_214 = TORCH_215.model_copy(update={"torch_version": "2.14.1+cu130", "torch_nccl2_switch": "1"})
TORCH_213 = TORCH_215.model_copy(
    update={
        "torch_version": "2.13.0+cu130",
        "torch_looks_backends_up": False,
        "torch_backends": (),
        "torch_nccl2_switch": None,
        "nccl_loaded": "2.29.7",
    }
)
#: torch's list of backends could not be read, and no rank told.
UNKNOWN = TORCH_215.model_copy(update={"torch_looks_backends_up": None, "torch_backends": ()})
OLD_CLASS = {"TORCH_DIST_USE_NCCL2": "0"}
HEARTBEAT = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1200"}


def rank_on(backend_impl: str) -> ProcessGroupFact:
    return ProcessGroupFact(
        backend="nccl",
        backend_impl=backend_impl,
        group_rank=0,
        world_size=1,
        init_s=0.1,
        first_collective_s=0.1,
        device="cuda:0",
        torch_version="2.15.0+cu132",
        nccl_available=True,
        gloo_available=True,
        pid=1,
    )


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


def test_a_heartbeat_set_for_nccl_legacy_is_a_warning_on_nccl2_that_says_what_is_missing():
    finding = only(HEARTBEAT, TORCH_215)
    assert (finding.code, finding.severity) == ("DD126", Severity.WARNING)
    assert finding.title == (
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1200 does nothing: only torch's NCCL backend nccl-legacy reads it,"
        " and nccl2 is in use"
    )
    assert finding.detail == "nccl2 has no monitor that ends a process whose watchdog is stuck."
    offered = [[(one.name, one.value) for one in remedy.settings] for remedy in finding.remedies]
    assert offered == [[("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", None)], [("TORCH_DIST_USE_NCCL2", "0")]]


def test_a_check_for_nan_has_a_variable_of_any_backend_in_its_place():
    finding = only({"TORCH_NCCL_NAN_CHECK": "true"}, TORCH_215)
    assert finding.severity is Severity.WARNING
    offered = {one.name: one.value for one in finding.remedies[0].settings}
    assert offered == {"TORCH_DIST_NAN_CHECK": "1", "TORCH_NCCL_NAN_CHECK": None}


def test_a_check_for_nan_that_is_there_already_is_not_advised_again():
    finding = next(
        one
        for one in findings({"TORCH_NCCL_NAN_CHECK": "1", "TORCH_DIST_NAN_CHECK": "1"}, TORCH_215)
        if one.code == "DD126"
    )
    assert [one.name for one in finding.remedies[0].settings] == ["TORCH_NCCL_NAN_CHECK"]


def test_an_old_name_of_a_protection_is_a_warning_too_and_no_other_rule_speaks_of_it():
    finding = only({"NCCL_DESYNC_DEBUG": "1"}, TORCH_215)
    assert (finding.code, finding.severity) == ("DD126", Severity.WARNING)


@pytest.mark.parametrize(
    "env",
    [
        {"TORCH_NCCL_ENABLE_MONITORING": "0"},
        {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"},
        {"TORCH_NCCL_COORD_CHECK_MILSEC": "500"},
        {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/dump"},
    ],
)
def test_a_setting_on_which_no_protection_rests_is_information(env):
    finding = only(env, TORCH_215)
    assert (finding.code, finding.severity) == ("DD126", Severity.INFO)


@pytest.mark.parametrize(
    "env",
    [
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},  # torchrun sets it, and both classes read it
        {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480", "TORCH_NCCL_ENABLE_MONITORING": "true"},
        {"TORCH_NCCL_DESYNC_DEBUG": "no", "NCCL_DESYNC_DEBUG": "0"},
        {"TORCH_NCCL_HIGH_PRIORITY": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"},
        {"TORCH_FR_DUMP_ON_TIMEOUT": "0", "TORCH_FR_BUFFER_SIZE": "20000"},
    ],
)
def test_on_nccl2_what_both_classes_read_and_what_asks_for_the_default_is_left_alone(env):
    assert findings(env, TORCH_215) == []


@pytest.mark.parametrize(
    ("software", "env"), [(TORCH_215, OLD_CLASS), (TORCH_214, {}), (TORCH_213, {}), (UNKNOWN, {}), (None, {})]
)
def test_a_heartbeat_is_left_alone_where_it_is_read_or_the_class_is_not_known(software, env):
    assert findings({**HEARTBEAT, **env}, software) == []


def test_a_rank_on_another_class_than_the_list_tells_decides():
    assert findings(HEARTBEAT, TORCH_215, rank_on("nccl-legacy")) == []
    assert only(HEARTBEAT, UNKNOWN, rank_on("nccl2")).code == "DD126"


def test_in_a_run_over_gloo_it_is_information():
    assert only(HEARTBEAT, TORCH_215, backend="gloo").severity is Severity.INFO


def test_the_list_of_settings_warns_of_it_though_it_starts_no_ranks():
    seen = recording(HEARTBEAT, TORCH_215, backend="gloo")
    seen = seen.model_copy(update={"options": Options(command="env")})
    assert [(one.code, one.severity) for one in app.judge(seen).report.findings] == [("DD126", Severity.WARNING)]


@pytest.mark.parametrize(("software", "switch"), [(TORCH_215, OLD_CLASS), (TORCH_214, {}), (TORCH_213, {})])
def test_a_setting_of_nccl2_is_information_on_the_older_class(software, switch):
    (finding,) = findings({"TORCH_NCCL2_RECONFIGURE_SHRINK_GROW": "1", **switch}, software)
    assert (finding.code, finding.severity) == ("DD126", Severity.INFO)
    offered = [one.name for remedy in finding.remedies for one in remedy.settings]
    assert ("TORCH_DIST_USE_NCCL2" in offered) == (software is not TORCH_213)


def test_the_flight_recorders_new_name_is_not_advised_where_the_older_one_is_read():
    finding = only({"TORCH_FR_DUMP_ON_TIMEOUT": "no", **OLD_CLASS}, TORCH_215)
    offered = {one.name: one.value for one in finding.remedies[0].settings}
    assert offered == {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_FR_DUMP_ON_TIMEOUT": None}


# --- what the other rules say beside it --------------------------------------------------------------------


def codes(env: dict[str, str], software: Software | None) -> list[str]:
    return sorted({one.code for one in findings(env, software)})


def test_what_nccl2_does_not_read_costs_nothing_there_is_refused_by_nobody_and_idle_beside_nothing():
    on_nccl2 = {"TORCH_NCCL_DESYNC_DEBUG": "1", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "ten"}
    assert codes(on_nccl2, TORCH_215) == ["DD126"]
    assert codes(on_nccl2, TORCH_213) == ["DD122", "DD123"]
    assert codes({**HEARTBEAT, "TORCH_NCCL_BLOCKING_WAIT": "1"}, TORCH_215) == ["DD124", "DD126"]
    assert codes({**HEARTBEAT, "TORCH_NCCL_BLOCKING_WAIT": "1"}, TORCH_213) == ["DD115", "DD124"]


def test_the_flight_recorder_is_written_beside_blocking_wait_on_nccl2():
    env = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert codes(env, TORCH_215) == ["DD124"]


def test_of_two_names_the_new_one_counts_where_it_is_read():
    env = {"TORCH_FR_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    assert codes(env, TORCH_215) == ["DD117"]
    assert codes({**env, **OLD_CLASS}, TORCH_215) == ["DD126"]
    assert codes(env, TORCH_213) == ["DD126"]
    assert codes(env, UNKNOWN) == codes(env, None) == []


@pytest.mark.parametrize(
    ("env", "severity"),
    [
        ({"TORCH_DIST_NAN_CHECK": "1"}, Severity.WARNING),
        ({"TORCH_NCCL_TEARDOWN_ON_TIMEOUT": "1"}, Severity.WARNING),
        ({"TORCH_DIST_USE_NCCL2": "0"}, Severity.INFO),  # what torch 2.13 does
    ],
)
def test_a_variable_of_a_newer_torch_is_not_read_yet(env, severity):
    finding = only(env, TORCH_213)
    assert (finding.code, finding.severity) == ("DD114", severity)
    assert "does nothing in torch 2.13.0" in finding.title


def test_a_variable_that_a_newer_torch_reads_no_longer_is_obsolete_there_alone():
    finding = only({"TORCH_NCCL_AVOID_RECORD_STREAMS": "0"}, TORCH_215)
    assert (finding.code, finding.severity) == ("DD113", Severity.WARNING)
    assert finding.title == (
        "TORCH_NCCL_AVOID_RECORD_STREAMS does nothing in torch 2.15.0: torch 2.14 was the last to read it"
    )
    assert only({"TORCH_NCCL_AVOID_RECORD_STREAMS": "0"}, TORCH_213).severity is Severity.INFO


def test_no_name_is_advised_that_this_torch_does_not_read():
    old_name = {"TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK": "1"}
    assert codes(old_name, TORCH_213) == codes(old_name, None) == []
    assert codes(old_name, TORCH_215) == ["DD113"]
    misspelled = only({"TORCH_DIST_NAN_CHEK": "1"}, TORCH_213)
    assert [(one.name, one.action) for one in misspelled.remedies[0].settings] == [("TORCH_DIST_NAN_CHEK", "unset")]


def test_only_a_plain_0_brings_the_older_class_back():
    finding = only({"TORCH_DIST_USE_NCCL2": "false"}, TORCH_215)
    assert (finding.code, finding.severity) == ("DD121", Severity.WARNING)
    assert [(one.name, one.value) for remedy in finding.remedies for one in remedy.settings] == [
        ("TORCH_DIST_USE_NCCL2", None),
        ("TORCH_DIST_USE_NCCL2", "0"),
    ]


def test_env_says_which_class_reads_a_variable():
    from ddp_doctor.app.inspection import judge_settings

    report = judge_settings(recording(HEARTBEAT, TORCH_215, backend="")).report
    (row,) = [one for one in report.model_dump()["settings"] if one["name"] in HEARTBEAT]
    assert row["meaning"].endswith("Only torch's older class for NCCL reads it, nccl-legacy.")
    assert [one.code for one in app.judge(recording(HEARTBEAT, TORCH_215, backend="")).report.findings] == ["DD126"]
