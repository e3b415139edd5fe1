"""Whole machines through all node checks: the healthy ones are left in peace, and one fault is one finding."""

import time
from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.checks.node.topology.p2p import cluster
from ddp_doctor.knowledge.topology.cluster_kinds import Kind
from ddp_doctor.model.choices import Severity, Status, Verdict
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.sources.machine import Files
from tests.machines import servers
from tests.machines.faults import FAULTS, Planted, said
from tests.machines.healthy import MACHINES, Healthy
from tests.machines.whole import judge, judged, look, record

#: Maximum number of info findings of a healthy machine.
MOST_INFOS = 4
#: The kind of cluster that a machine is in; all others have InfiniBand.
KINDS: dict[str, Kind] = {
    "HGX A100 with RoCE, prolog": "RoCE",
    "HGX A100 with RoCE": "RoCE",
    "two HGX A100 with RoCE": "RoCE",
    "two pods with RoCE of their own": "RoCE",
    "two AWS p5": "AWS with EFA",
    "AWS p4d": "AWS with EFA",
    "two GCP A3": "Google Cloud without RDMA",
    "two GCP A3 Mega": "Google Cloud without RDMA",
    "two Azure ND H100 v5": "Azure with InfiniBand",
    "workstation with two RTX 4090": "Ethernet",
    "four A10G without P2P": "unknown",
    "H100 NVL, prolog": "unknown",
    "H100 NVL in pairs": "unknown",
    "GH200, prolog": "unknown",
    "GH200": "unknown",
    "laptop": "unknown",
    "laptop, prolog": "unknown",
    "laptop under WSL 2": "unknown",
}


@pytest.mark.parametrize("machine", MACHINES, ids=[one.name for one in MACHINES])
def test_healthy_machine_has_few_findings(machine: Healthy) -> None:
    recording = record(machine.build(), machine.command)
    report = judged(recording)

    above = [(one.code, one.title) for one in report.findings if one.severity is not Severity.INFO]
    assert above == []
    assert sorted(one.code for one in report.findings) == sorted(machine.says)
    assert len(report.findings) <= MOST_INFOS
    assert report.verdict is Verdict.HEALTHY
    assert [one.id for one in report.checks if one.status.value in ("failed", "timed_out")] == []
    nodes = recording.world.nnodes if recording.world else 1
    assert {cluster(recording, node).kind for node in range(nodes)} == {KINDS.get(machine.name, "InfiniBand")}


def test_table_of_clusters_names_known_machines() -> None:
    assert set(KINDS) <= {one.name for one in MACHINES}


@pytest.mark.parametrize("fault", FAULTS, ids=[one.name for one in FAULTS])
def test_one_fault_is_one_finding_that_names_the_culprit(fault: Planted) -> None:
    assert said(judge(fault.nodes())) == fault.says


def _fact(reading: Reading) -> tuple[object, ...]:
    return reading.check, reading.status, reading.fact


def test_a_machine_in_memory_is_read_like_one_on_a_disk(tmp_path: Path) -> None:
    machine = servers.dgx_h100(as_root=True)
    in_memory = [_fact(reading) for reading in look(machine)]

    machine.board.tree.save(tmp_path)
    machine.board.tree = Files(str(tmp_path))  # type: ignore[assignment]  # reads alike, as whole.py needs

    assert [_fact(reading) for reading in look(machine)] == in_memory
    assert all(status is Status.COLLECTED for _, status, _ in in_memory)


@pytest.mark.lab
def test_evaluation_time_grows_linearly_with_the_nodes() -> None:
    one = record([servers.dgx_h100(as_root=True)])

    def judged_s(nodes: int) -> float:
        hosts = tuple(Node(node_rank=at, hostname=f"node{at}") for at in range(nodes))
        world = World(nnodes=nodes, nproc_per_node=8, world_size=8 * nodes, backend="nccl", nodes=hosts)
        readings = tuple(it.model_copy(update={"node": at}) for at in range(nodes) for it in one.readings)
        recording = Recording(world=world, options=one.options, readings=readings)
        started = time.process_time()
        app.judge(recording)
        return time.process_time() - started

    judged_s(8)
    assert judged_s(256) < 16 * judged_s(32)  # 8 times is linear, 64 times the square
