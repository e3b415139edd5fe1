"""The environment check: what is recorded, what each rule says, and what must be left alone."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.node.env_vars import CHECK, probe
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.settings.table import variables
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.readings import findings_of, of_nodes, plain_world

#: A worker of torchrun (torch 2.13), as a real run exported it.
TORCHRUN_WORKER = {
    "OMP_NUM_THREADS": "1",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "RANK": "0",
    "GROUP_RANK": "0",
    "ROLE_RANK": "0",
    "ROLE_NAME": "default",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "41613",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "9e696fd8-0788-40d1-a987-6d068a7a90e8",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "LOCAL_RANK": "0",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_k7fvidlm/attempt_0/0/error.json",
}
SLURM_TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_NNODES": "2",
}
RENDEZVOUS = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def recording(*environments: Mapping[str, str], backend: str = "gloo") -> Recording:
    facts = [probe(FakeContext(env=env)) for env in environments]
    return Recording(world=plain_world(len(facts), 2, backend), readings=of_nodes("env_vars", facts))


def findings(*environments: Mapping[str, str], backend: str = "gloo") -> list[Finding]:
    return findings_of(CHECK, recording(*environments, backend=backend))


def only(env: Mapping[str, str], backend: str = "gloo") -> Finding:
    (finding,) = findings(env, backend=backend)
    return finding


def codes(env: Mapping[str, str]) -> list[str]:
    return [finding.code for finding in findings(env)]


def above_info(env: Mapping[str, str], backend: str = "nccl") -> list[str]:
    return [f.title for f in findings(env, backend=backend) if f.severity.at_least(Severity.WARNING)]


# --- the probe ---------------------------------------------------------------------------------------------


def test_only_names_that_matter_are_recorded_with_their_values():
    fact = probe(FakeContext(env={"RANK": "0", "NCCL_DEBUG": "INFO", "HOME": "/root", "DB_PASSWORD": "hunter2"}))
    assert fact.variables == {"NCCL_DEBUG": "INFO", "RANK": "0"}


def test_credentials_are_withheld_and_named():
    fact = probe(FakeContext(env={"PET_RDZV_ENDPOINT": "etcd://me:hunter2@host:2379", "TORCH_HUB_TOKEN": "abc"}))
    assert fact.variables == {}
    assert fact.withheld == ("PET_RDZV_ENDPOINT", "TORCH_HUB_TOKEN")
    assert "hunter2" not in fact.model_dump_json()


def test_bytes_that_are_no_text_can_be_recorded():
    fact = probe(FakeContext(env={"NCCL_DEBUG_FILE": "/logs/\udcff%p"}))
    assert json.loads(fact.model_dump_json())["variables"] == {"NCCL_DEBUG_FILE": "/logs/\\udcff%p"}


def test_this_machine_has_nothing_above_info():
    fact = probe(LiveContext(dict(os.environ), time.monotonic() + 60))
    assert isinstance(fact, EnvVars)
    assert above_info(fact.variables) == []


NAMES = st.one_of(
    st.sampled_from(sorted(variables())),
    st.from_regex(r"(NCCL|TORCH_NCCL|GLOO|PET|nccl)_[A-Za-z_]{0,12}", fullmatch=True),
    st.sampled_from(["SLURM_STEP_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "KUBERNETES_SERVICE_HOST"]),
)
VALUES = st.one_of(st.integers(-9, 99).map(str), st.text(max_size=12))


@given(st.dictionaries(NAMES, VALUES, max_size=8), st.sampled_from(["gloo", "nccl"]))
def test_any_environment_is_judged_and_every_sentence_can_be_printed(env, backend):
    for finding in findings(env, backend=backend):
        assert finding.title.isprintable()
        assert finding.detail.isprintable()
        assert all(item.text.isprintable() for item in finding.evidence)


# --- launch variables --------------------------------------------------------------------------------------


def test_leftover_rank_without_world_size_is_a_warning():
    finding = only({"RANK": "3"})
    assert (finding.code, finding.severity) == ("DD101", Severity.WARNING)
    assert finding.title == "RANK=3 is set, though neither torchrun nor srun nor mpirun started this process"
    assert "fails without WORLD_SIZE" in finding.detail
    assert [(s.name, s.action) for s in finding.remedies[0].settings] == [("RANK", "unset")]
    assert finding.remedies[0].undo == "export RANK=3"


def test_leftover_world_of_eight_is_one_finding_that_says_where_a_script_would_wait():
    finding = only({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", **RENDEZVOUS})
    assert "joins as rank 3 of 8 at node0:29500" in finding.detail
    assert [culprit.name for culprit in finding.culprits] == ["RANK", "LOCAL_RANK", "WORLD_SIZE"]


def test_world_of_one_is_information():
    assert only({"RANK": "0", "WORLD_SIZE": "1", **RENDEZVOUS}).severity is Severity.INFO
    assert only({"WORLD_SIZE": "1"}).severity is Severity.INFO


def test_sizes_that_a_batch_script_exports_are_left_alone():
    assert codes({"SLURM_JOB_ID": "1", "WORLD_SIZE": "16", **RENDEZVOUS}) == []


def test_rank_exported_by_a_batch_script_is_a_warning():
    assert codes({"SLURM_JOB_ID": "1", "RANK": "0", "WORLD_SIZE": "16", **RENDEZVOUS}) == ["DD101"]


def test_nothing_that_the_installed_torchrun_exports_is_flagged():
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    agent = Path(str(spec.origin)).parent / "distributed/elastic/agent/server/local_elastic_agent.py"
    source = agent.read_text(encoding="utf-8")
    start = source.index("def _start_workers")
    exported = set(re.findall(r'"([A-Z_]+)": ', source[start : source.index("def _shutdown", start)]))
    assert {"RANK", "TORCHELASTIC_RUN_ID", "TORCH_NCCL_ASYNC_ERROR_HANDLING"} <= exported
    assert exported <= set(TORCHRUN_WORKER)
    for level in (TORCHRUN_WORKER, {**SLURM_TASK, **TORCHRUN_WORKER, "RANK": "1", "CUDA_VISIBLE_DEVICES": "0,1"}):
        assert findings(level) == []


def test_plain_slurm_task_has_no_finding():
    assert findings(SLURM_TASK) == []
    assert findings({**SLURM_TASK, "RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", **RENDEZVOUS}) == []


def test_slurm_task_with_rank_but_no_rendezvous_is_a_warning():
    finding = only({**SLURM_TASK, "RANK": "0"})
    assert (finding.code, finding.severity) == ("DD102", Severity.WARNING)
    assert finding.title == "RANK=0 is set, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT"


def test_rank_inherited_by_every_task_is_a_warning():
    finding = only({**SLURM_TASK, "SLURM_PROCID": "5", "RANK": "0", "WORLD_SIZE": "8", **RENDEZVOUS})
    assert finding.title == "RANK is 0, but the launcher set SLURM_PROCID=5"


def test_complete_set_that_cannot_be_true_is_an_error():
    finding = only({**SLURM_TASK, "SLURM_PROCID": "8", "RANK": "8", "WORLD_SIZE": "8", **RENDEZVOUS})
    assert (finding.code, finding.severity) == ("DD102", Severity.ERROR)


def test_loopback_master_in_a_job_of_two_nodes_is_a_warning():
    env = {**TORCHRUN_WORKER, "GROUP_WORLD_SIZE": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
    finding = only(env)
    assert (finding.code, finding.severity) == ("DD102", Severity.WARNING)
    assert "2 nodes" in finding.title


def test_remains_of_torchrun_without_a_rank_are_a_warning():
    finding = only({"TORCHELASTIC_RUN_ID": "x"})
    assert finding.title.startswith("TORCHELASTIC_RUN_ID=x is set, but not RANK")


def test_impossible_port_outside_any_world_is_a_warning():
    finding = only({"MASTER_PORT": "70000"})
    assert (finding.code, finding.severity) == ("DD102", Severity.WARNING)


def test_more_local_ranks_than_visible_gpus_is_a_warning():
    env = {**TORCHRUN_WORKER, "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}
    finding = only(env)
    assert (finding.code, finding.severity) == ("DD103", Severity.WARNING)
    assert finding.title == "LOCAL_WORLD_SIZE=4 needs 4 GPUs, but CUDA_VISIBLE_DEVICES shows 2"


@pytest.mark.parametrize("devices", ["", "-1", "NoDevFiles", "3", "0,1", "0,1,2,3"])
def test_no_gpus_one_per_task_or_enough_of_them_pass(devices):
    assert codes({**TORCHRUN_WORKER, "CUDA_VISIBLE_DEVICES": devices}) == []


def test_local_rank_beyond_the_only_visible_gpu_is_a_warning():
    env = {**TORCHRUN_WORKER, "RANK": "1", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}
    assert codes(env) == ["DD103"]


def test_torchrun_options_in_a_login_shell_are_a_warning():
    finding = only({"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "node7:29400"})
    assert (finding.code, finding.severity) == ("DD104", Severity.WARNING)


@pytest.mark.parametrize(
    "env", [{"PET_NNODES": "1:1"}, {"PET_NNODES": "2", "SLURM_JOB_ID": "1"}, {"PET_LOG_DIR": "/logs"}]
)
def test_torchrun_options_that_redirect_nothing_or_belong_to_a_job_pass(env):
    assert codes(env) == []


# --- names -------------------------------------------------------------------------------------------------


def test_misspelled_name_is_a_warning_with_the_right_name_and_value():
    finding = only({"NCCL_IB_DISABEL": "true"})
    assert (finding.code, finding.severity) == ("DD111", Severity.WARNING)
    assert finding.title == "Nothing reads NCCL_IB_DISABEL; did you mean NCCL_IB_DISABLE?"
    settings = [(s.action, s.name, s.value) for s in finding.remedies[0].settings]
    assert settings == [("set", "NCCL_IB_DISABLE", "1"), ("unset", "NCCL_IB_DISABEL", None)]


def test_misspelled_name_beside_the_right_one_is_only_to_be_unset():
    finding = only({"NCCL_SOCKET_IFNAM": "eth0", "NCCL_SOCKET_IFNAME": "eth1"})
    assert finding.detail == "So NCCL_SOCKET_IFNAME=eth1 stands."
    assert [s.action for s in finding.remedies[0].settings] == ["unset"]


def test_nccl_timeout_is_a_warning_that_says_what_was_meant():
    finding = only({"NCCL_TIMEOUT": "1800"})
    assert (finding.code, finding.severity) == ("DD112", Severity.WARNING)
    assert "init_process_group(timeout=...)" in finding.detail


def test_unknown_name_is_information():
    finding = only({"NCCL_FROB": "1"})
    assert (finding.code, finding.severity, finding.remedies) == ("DD112", Severity.INFO, ())


def test_removed_name_is_a_warning_and_deprecated_name_is_information():
    assert only({"NCCL_TREE_THRESHOLD": "0"}).severity is Severity.WARNING
    deprecated = only({"NCCL_ASYNC_ERROR_HANDLING": "1"})
    assert (deprecated.code, deprecated.severity) == ("DD113", Severity.INFO)
    assert [s.name for s in deprecated.remedies[0].settings] == [
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_ASYNC_ERROR_HANDLING",
    ]


# --- values ------------------------------------------------------------------------------------------------


def test_ib_disable_true_is_a_warning_that_says_it_is_read_as_0():
    finding = only({"NCCL_IB_DISABLE": "true"})
    assert (finding.code, finding.severity) == ("DD121", Severity.WARNING)
    assert finding.title == "NCCL_IB_DISABLE=true is read as 0, so nothing is disabled"


def test_debug_file_with_r_is_a_warning():
    finding = only({"NCCL_DEBUG_FILE": "/logs/%h.%r"})
    assert finding.severity is Severity.WARNING
    assert finding.remedies[0].settings[0].value == "/logs/%h.%p"


@pytest.mark.parametrize("env", [{"NCCL_DEBUG": ""}, {"NCCL_DEBUG_FILE": "/logs/nccl.log"}])
def test_empty_values_and_shared_log_files_are_information(env):
    assert only(env).severity is Severity.INFO


@pytest.mark.parametrize(
    ("env", "backend", "severity"),
    [
        ({"TORCH_NCCL_BLOCKING_WAIT": "on"}, "nccl", Severity.ERROR),
        ({"TORCH_NCCL_BLOCKING_WAIT": "on"}, "gloo", Severity.WARNING),
        ({"GLOO_SOCKET_IFNAME": "^lo"}, "gloo", Severity.ERROR),
        ({"GLOO_SOCKET_IFNAME": "=lo"}, "nccl", Severity.WARNING),
        ({"TORCH_DISTRIBUTED_DEBUG": "1"}, "gloo", Severity.ERROR),
        ({"TORCH_DIST_INIT_BARRIER": "true"}, "nccl", Severity.ERROR),
        ({"TORCH_FR_BUFFER_SIZE": "many"}, "gloo", Severity.ERROR),
        ({"LOGLEVEL": "debug"}, "gloo", Severity.WARNING),
        ({"PET_STANDALONE": "true", "SLURM_JOB_ID": "1"}, "gloo", Severity.WARNING),
    ],
)
def test_refused_value_is_an_error_where_this_backend_reads_it(env, backend, severity):
    finding = only(env, backend)
    assert (finding.code, finding.severity) == ("DD122", severity)


def test_same_line_on_two_nodes_is_one_finding_that_names_both():
    (finding,) = findings({"NCCL_IB_DISABLE": "true"}, {"NCCL_IB_DISABLE": "true"})
    assert finding.title.endswith("(on node0 and node1)")
    assert [(c.kind, c.node, c.name) for c in finding.culprits] == [
        ("setting", "node0", "NCCL_IB_DISABLE"),
        ("setting", "node1", "NCCL_IB_DISABLE"),
    ]


def test_one_line_whose_values_differ_from_node_to_node_is_one_finding():
    (finding,) = findings(*({"RANK": str(rank), "WORLD_SIZE": "4"} for rank in range(4)))
    assert finding.title.endswith("(on node0; alike on node1, node2 and node3)")
    assert [one.text for one in finding.evidence[:2]] == ["node0: RANK=0, WORLD_SIZE=4", "node1: RANK=1, WORLD_SIZE=4"]
    assert {one.node for one in finding.culprits} == {"node0", "node1", "node2", "node3"}


def test_values_of_thousands_of_nodes_are_one_finding_of_a_few_lines():
    (finding,) = findings(*({"RANK": str(rank), "WORLD_SIZE": "999"} for rank in range(999)))
    assert len(finding.evidence) == 8
    assert len(finding.title) < 200


def test_two_faults_of_one_variable_stay_two_findings():
    task = {**SLURM_TASK, **RENDEZVOUS, "WORLD_SIZE": "8", "RANK": "9"}
    assert len(findings(task)) == len(findings(task, task)) == 2


def test_the_node_with_the_fault_is_named_alone():
    (finding,) = findings({"NCCL_DEBUG": "INFO"}, {"NCCL_IB_DISABLE": "true"})
    assert [c.node for c in finding.culprits] == ["node1"]


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_DEBUG": "INFO"},
        {"NCCL_VERSION": "2.27.3-1", "NCCL_HOME": "/opt/nccl", "TORCH_CUDA_ARCH_LIST": "9.0"},
        {"NCCL_FASTRAK_IFNAME": "eth1", "NCCL_TUNER_CONFIG_PATH": "/x", "NCCL_CROSS_NIC": "0", "NCCL_PROTO": "Simple"},
        {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_SHM_DISABLE": "0", "NCCL_ALGO": "Ring"},
        {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1", "NCCL_WORK_FIFO_DEPTH": "4194304", "TORCH_LOGS": "+dynamo"},
    ],
)
def test_ordinary_environments_give_nothing_above_info(env):
    assert above_info(env) == []
