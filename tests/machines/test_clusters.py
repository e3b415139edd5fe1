"""The kind of cluster that each whole machine is taken for; nothing that is not told is assumed."""

import pytest

from ddp_doctor.checks.node.topology.p2p import cluster
from ddp_doctor.knowledge.topology.cluster_kinds import Kind
from ddp_doctor.model.recording import Recording
from tests.machines.healthy import MACHINES, Healthy
from tests.machines.whole import record

#: All others have InfiniBand.
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


def kind_of(machine: Healthy) -> Kind:
    recording: Recording = record(machine.build())
    kinds = {cluster(recording, node).kind for node in range(recording.world.nnodes if recording.world else 1)}
    assert len(kinds) == 1
    return kinds.pop()


@pytest.mark.parametrize("machine", MACHINES, ids=[one.name for one in MACHINES])
def test_a_machine_is_taken_for_what_its_facts_say(machine: Healthy):
    assert kind_of(machine) == KINDS.get(machine.name, "InfiniBand")


def test_every_name_in_the_list_is_a_machines():
    assert set(KINDS) <= {one.name for one in MACHINES}
