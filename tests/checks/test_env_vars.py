"""The environment check: the recorded variables, the findings of each rule, and values that are not reported."""

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
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.interface_choice import Choice
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.settings.table import variables
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.readings import findings_of, of_nodes, plain_world
from tests.words import pairs

#: A worker of torchrun (torch 2.13), as a real run exported it.
TORCHRUN_WORKER = pairs("""
    OMP_NUM_THREADS=1 TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT RANK=0 GROUP_RANK=0 ROLE_RANK=0
    ROLE_NAME=default LOCAL_WORLD_SIZE=2 WORLD_SIZE=2 GROUP_WORLD_SIZE=1 ROLE_WORLD_SIZE=2 MASTER_ADDR=localhost
    MASTER_PORT=41613 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=0
    TORCHELASTIC_RUN_ID=9e696fd8-0788-40d1-a987-6d068a7a90e8 TORCHELASTIC_USE_AGENT_STORE=True
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1 LOCAL_RANK=0
    TORCHELASTIC_ERROR_FILE=/tmp/torchelastic_k7fvidlm/attempt_0/0/error.json
""")
SLURM_TASK = pairs("""
    SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8 SLURM_NNODES=2
""")


def recording(*environments: Mapping[str, str], backend: str = "gloo") -> Recording:
    facts = [probe(FakeContext(env=env)) for env in environments]
    return Recording(world=plain_world(len(facts), 2, backend), readings=of_nodes("env_vars", facts))


def findings(*environments: Mapping[str, str], backend: str = "gloo") -> list[Finding]:
    return findings_of(CHECK, recording(*environments, backend=backend))


def judged(*facts: EnvVars, backend: str) -> list[Finding]:
    world = plain_world(len(facts), 2, backend)
    return findings_of(CHECK, Recording(world=world, readings=of_nodes("env_vars", facts)))


def only(env: Mapping[str, str], backend: str = "gloo") -> Finding:
    (finding,) = findings(env, backend=backend)
    return finding


# --- the probe ---------------------------------------------------------------------------------------------


def test_only_names_that_matter_are_recorded_with_their_values():
    fact = probe(FakeContext(env={"RANK": "0", "NCCL_DEBUG": "INFO", "HOME": "/root", "DB_PASSWORD": "hunter2"}))
    assert fact.variables == {"NCCL_DEBUG": "INFO", "RANK": "0"}


def test_credentials_are_withheld_and_named():
    fact = probe(FakeContext(env={"PET_RDZV_ENDPOINT": "etcd://me:hunter2@host:2379", "TORCH_HUB_TOKEN": "abc"}))
    assert fact.variables == {}
    assert fact.withheld == ("PET_RDZV_ENDPOINT", "TORCH_HUB_TOKEN")
    assert "hunter2" not in fact.model_dump_json()


def test_bytes_that_are_not_text_can_be_recorded():
    fact = probe(FakeContext(env={"NCCL_DEBUG_FILE": "/logs/\udcff%p"}))
    assert json.loads(fact.model_dump_json())["variables"] == {"NCCL_DEBUG_FILE": "/logs/\\udcff%p"}


def test_this_machine_has_nothing_above_info():
    fact = probe(LiveContext(dict(os.environ), time.monotonic() + 60))
    assert isinstance(fact, EnvVars)
    assert [f.title for f in findings(fact.variables) if f.severity.at_least(Severity.WARNING)] == []


@pytest.mark.parametrize(
    ("name", "backend", "severity"),
    [
        ("NCCL_TOPO_FILE", "nccl", Severity.WARNING),
        ("NCCL_GRAPH_FILE", "nccl", Severity.ERROR),
        ("NCCL_GRAPH_FILE", "gloo", Severity.INFO),
    ],
)
def test_file_that_nccl_cannot_read_is_reported(name: str, backend: str, severity: Severity):
    missing = probe(FakeContext(env={name: "/etc/topo.xml"}))
    there = probe(FakeContext(env={name: "/etc/topo.xml"}, files={"/etc/topo.xml": "<system/>"}))
    found = {one.code: one.severity for one in judged(missing, backend=backend)}
    assert found["DD109"] is severity
    assert "DD109" not in {one.code for one in judged(there, backend=backend)}


@pytest.mark.parametrize(
    ("ids", "boots", "severity"),
    [
        (("a", "a"), ("b0", "b1"), Severity.ERROR),
        (("a", "a"), (), Severity.WARNING),
        (("a", "a"), ("b0", "b0"), None),  # containers of one machine
        (("a", "b"), ("b0", "b1"), None),
    ],
)
def test_host_id_of_several_machines_is_an_error(
    ids: tuple[str, ...], boots: tuple[str, ...], severity: Severity | None
):
    none = Choice()
    hosts = [InterfacesFact(gloo=none, nccl=none, host_id=f"{boot} net:[1]") for boot in boots]
    one = recording(*({"NCCL_HOSTID": value} for value in ids), backend="nccl")
    both = one.model_copy(update={"readings": (*one.readings, *of_nodes("interfaces", hosts))})
    assert [found.severity for found in findings_of(CHECK, both) if found.code == "DD134"] == [severity][
        : severity is not None
    ]


NAMES = st.one_of(
    st.sampled_from(sorted(variables())),
    st.from_regex(r"(NCCL|TORCH_NCCL|GLOO|PET|nccl)_[A-Za-z_]{0,12}", fullmatch=True),
    st.sampled_from(["SLURM_STEP_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "KUBERNETES_SERVICE_HOST"]),
)
VALUES = st.one_of(st.integers(-9, 99).map(str), st.text(max_size=12))


@given(st.dictionaries(NAMES, VALUES, max_size=8), st.sampled_from(["gloo", "nccl"]))
def test_any_environment_gives_printable_sentences(env, backend):
    for finding in findings(env, backend=backend):
        assert finding.title.isprintable()
        assert finding.detail.isprintable()
        assert all(item.text.isprintable() for item in finding.evidence)


# --- launch variables --------------------------------------------------------------------------------------


def test_variables_exported_by_the_installed_torchrun_are_not_flagged():
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


def test_loopback_master_in_a_job_of_two_nodes_is_a_warning():
    env = {**TORCHRUN_WORKER, "GROUP_WORLD_SIZE": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
    finding = only(env)
    assert (finding.code, finding.severity) == ("DD102", Severity.WARNING)
    assert "2 nodes" in finding.title


# --- names -------------------------------------------------------------------------------------------------


def test_unknown_name_is_info():
    finding = only({"NCCL_FROB": "1"})
    assert (finding.code, finding.severity, finding.remedies) == ("DD112", Severity.INFO, ())


def test_removed_and_deprecated_names_are_info():
    assert only({"NCCL_TREE_THRESHOLD": "0"}).severity is Severity.INFO
    deprecated = only({"NCCL_ASYNC_ERROR_HANDLING": "1"})
    assert (deprecated.code, deprecated.severity) == ("DD113", Severity.INFO)
    assert [s.name for s in deprecated.remedies[0].settings] == [
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_ASYNC_ERROR_HANDLING",
    ]


# --- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [{"NCCL_DEBUG": ""}, {"NCCL_DEBUG_FILE": "/logs/nccl.log"}])
def test_empty_values_and_shared_log_files_are_info(env):
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
def test_refused_value_is_an_error_if_this_backend_reads_it(env, backend, severity):
    finding = only(env, backend)
    assert (finding.code, finding.severity) == ("DD122", severity)


def test_values_of_hundreds_of_nodes_are_one_short_finding():
    (finding,) = findings(*({"RANK": str(rank), "WORLD_SIZE": "299"} for rank in range(299)))
    assert len(finding.evidence) == 8
    assert len(finding.title) < 200
