"""Settings of a node's ranks: the odd rank is named, of two nobody; what may be a rank's own is left alone."""

from typing import Any

import pytest

from ddp_doctor.checks.cluster.consistency import CHECK
from ddp_doctor.facts.cluster import ConsistencyFact, RankSettings, Settings
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.probing.rank_identity import settings_of
from tests.readings import collected, findings_of, replayed, uneven_world

#: What one rank has set; None is a rank that told nothing.
Told = dict[str, str] | None


def _recording(*nodes: tuple[Told, ...], backend: str = "nccl", more: Any = (), **world: Any) -> Recording:
    size = len(nodes[0])
    facts: list[tuple[int, str, Fact]] = list(more)
    for at, ranks in enumerate(nodes):
        told = {local: settings_of(one) for local, one in enumerate(ranks) if one is not None}
        facts.append((at, "env_vars", EnvVars(variables=ranks[0] or {})))
        facts.append((at, "env_vars", RankSettings(local_size=size, ranks=told)))
        if len(nodes) > 1:
            facts.append((at, "consistency", ConsistencyFact(tool_version="0.1.0")))
    here = uneven_world([size] * len(nodes), backend).model_copy(update={"launcher": "torchrun", **world})
    readings = tuple(collected(check, fact, node) for node, check, fact in facts)
    return Recording(world=here, readings=readings)


def _findings(*nodes: tuple[Told, ...], **options: Any) -> list[Finding]:
    return findings_of(CHECK, replayed(_recording(*nodes, **options)))


def _only(*nodes: tuple[Told, ...], **options: Any) -> Finding:
    (finding,) = _findings(*nodes, **options)
    assert finding.code == "DD555"
    return finding


TREE = {"NCCL_ALGO": "Tree"}


@pytest.mark.parametrize(
    ("name", "here", "there"),
    [
        ("CUDA_VISIBLE_DEVICES", "0", "1"),
        ("LOCAL_RANK", "0", "1"),
        ("SLURM_LOCALID", "0", "1"),
        ("TORCHELASTIC_ERROR_FILE", "/tmp/0/error.json", "/tmp/1/error.json"),
        ("OMP_NUM_THREADS", "1", "8"),
        ("NCCL_DEBUG", "INFO", None),
        ("NCCL_DEBUG_FILE", "/a", "/b"),
        ("NCCL_TOPO_FILE", "/a", "/b"),
        ("NCCL_IB_HCA", "mlx5_0", "mlx5_1"),
        ("NCCL_SOCKET_IFNAME", "eth0", "eth1"),
        ("GLOO_SOCKET_IFNAME", "eth0", "eth1"),
        ("NCCL_ALGO", "tree", "Tree"),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", None),
    ],
)
def test_what_may_be_a_ranks_own_is_left_alone(name: str, here: str, there: str | None):
    assert _findings(({name: here}, {name: there} if there else {})) == []


@pytest.mark.parametrize(
    ("name", "value", "backend", "severity"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "gloo", Severity.ERROR),
        ("NCCL_ALGO", "Tree", "gloo", Severity.INFO),
        ("NCCL_P2P_DISABLE", "1", "nccl", Severity.WARNING),
        ("NCCL_SHM_DISABLE", "1", "nccl", Severity.WARNING),
        ("NCCL_HOSTID", "a", "nccl", Severity.WARNING),
        ("NCCL_HOSTID", "a", "gloo", Severity.INFO),
        ("NCCL_IB_HCA", "mlx5_0", "nccl", Severity.INFO),
    ],
)
def test_how_much_a_setting_of_one_rank_matters(name: str, value: str, backend: str, severity: Severity):
    found = _only(({}, {name: value}, {}), backend=backend)

    assert (found.severity, [(one.node, one.rank) for one in found.culprits]) == (severity, [("node0", 1)])


@pytest.mark.parametrize(("foreign_nodes", "severity"), [(1, Severity.WARNING), (2, Severity.ERROR)])
def test_two_networks_part_ranks_only_where_the_job_has_several_nodes(foreign_nodes: int, severity: Severity):
    rdma = [(0, "host", Host(cpus=8, rdma_devices=("mlx5_0",)))]

    found = _only(({}, {"NCCL_IB_DISABLE": "1"}, {}), more=rdma, foreign_nodes=foreign_nodes)

    assert found.severity is severity


def test_thousands_of_ranks_of_which_each_is_different_are_one_short_finding():
    nodes = [tuple({"NCCL_BUFFSIZE": str(8 * at + local)} for local in range(8)) for at in range(500)]

    found = _only(*nodes)

    assert len(found.title) < 400
    assert len(found.evidence[0].text) < 400


def test_no_secret_and_no_name_of_something_else_is_told():
    env = {
        "NCCL_NOTE": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "HOME": "/root",
        "HF_TOKEN": "hf_x",
        "NCCL_DEBUG": "INFO",
        "NCCL_BUFFSIZE": "1\udcff",
        "NCCL_\udcff": "1",
        **TREE,
    }

    assert settings_of(env) == Settings(variables={**TREE, "NCCL_BUFFSIZE": "1\\udcff"}, withheld=("NCCL_NOTE",))
