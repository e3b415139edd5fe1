"""The rdma check: machines made of /sys files, read by the real probe; recordings show what each means for a job."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ddp_doctor.checks.node.rdma import CHECK, afterwards, probe
from ddp_doctor.engine.collect import read_check
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Absent
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.sources.machine import LiveContext
from tests import rdma_trees as trees
from tests.fakes import FakeContext
from tests.rdma_trees import Tree
from tests.readings import findings_of, plain_world


def findings(*machines: Tree, **env: str) -> list[Finding]:
    """Return the findings about a run of these machines, one per node."""
    contexts = [FakeContext(env=env, files=tree.files, links=tree.links, node=at) for at, tree in enumerate(machines)]
    readings = tuple(read_check(CHECK, context) for context in contexts)
    assert [reading.status for reading in readings] == [Status.COLLECTED] * len(machines), readings
    return findings_of(CHECK, Recording(world=plain_world(len(machines), 8, "nccl"), readings=readings))


# --- the probe ------------------------------------------------------------------------------------------


def test_machine_without_rdma_is_absent_at_no_cost(tmp_path: Path):
    started = time.process_time()

    for folder in ("", "sys/class/infiniband"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        with pytest.raises(Absent, match="no RDMA device"):
            probe(LiveContext({}, time.monotonic() + 60, root=str(tmp_path)))

    assert time.process_time() - started < 0.5


def test_machine_on_disk_is_read_like_one_in_memory(tmp_path: Path):
    tree = trees.with_storage(trees.infiniband(down=[3]))
    tree.write(tmp_path)

    fact = probe(LiveContext({"NCCL_IB_HCA": "mlx5_0"}, time.monotonic() + 60, root=str(tmp_path)))

    read = probe(tree.context({"NCCL_IB_HCA": "mlx5_0"}))
    assert fact.model_copy(update={"hcas": ()}) == read.model_copy(update={"hcas": ()})
    assert [hca.model_copy(update={"ports": ()}) for hca in fact.hcas] == [
        hca.model_copy(update={"ports": ()}) for hca in read.hcas
    ]
    assert [port.state for _, port in fact.ports()] == [port.state for _, port in read.ports()]


def test_all_values_of_a_port_are_read():
    fact = probe(trees.roce().context())

    hca = fact.hcas[2]
    (port,) = hca.ports
    assert (hca.name, hca.bus_id, hca.driver, hca.numa_node) == ("mlx5_2", "0000:3a:00.0", "mlx5_core", 0)
    assert (hca.firmware, hca.hca_type, hca.board_id) == ("28.39.1002", "MT4129", "MT_0000000834")
    assert (hca.node_type, hca.device_node, hca.device_problem) == ("CA", "uverbs2", None)
    assert (port.state, port.phys_state, port.link_layer) == ("ACTIVE", "LinkUp", "Ethernet")
    assert (port.rate, port.rate_gbit_per_s, port.lid, port.sm_lid) == ("400 Gb/sec (4X NDR)", 400.0, 5, 0)
    assert [(gid.index, gid.roce, gid.address, gid.netdev) for gid in port.gids][2:] == [
        (2, 1, "::ffff:10.2.0.1", "eth2"),
        (3, 2, "::ffff:10.2.0.1", "eth2"),
    ]
    assert port.counters["link_downed"] == 1
    assert port.counters["np_cnp_sent"] == 7
    netdev = fact.netdev(port)
    assert netdev is not None
    assert (netdev.name, netdev.mtu_bytes, netdev.carrier_changes) == ("eth2", 9000, 2)


def test_bond_is_read_with_its_slaves():
    fact = probe(trees.bond().context())

    ((hca, port),) = fact.chosen()
    netdev = fact.netdev(port)
    assert hca.name == "mlx5_bond_0"
    assert netdev is not None
    assert (netdev.bond_mode, netdev.slaves) == ("802.3ad", ("ens1f0np0", "ens1f1np1"))
    assert [one.master for one in fact.netdevs if one.name.startswith("ens")] == ["bond0", "bond0"]


def test_efa_is_recognized_and_is_not_a_candidate():
    fact = probe(trees.efa().context())

    assert [hca.is_efa for hca in fact.hcas] == [True] * 4
    assert fact.candidates() == []


def test_devices_are_sorted_naturally_and_chosen_by_pci_address():
    fact = probe(trees.virtual_functions().context())

    assert [hca.name for hca in fact.hcas][:12] == [f"mlx5_{at}" for at in range(12)]
    assert fact.hcas[0].virtual_functions == 62
    assert sum(hca.is_virtual_function for hca in fact.hcas) == 62


def test_device_that_cannot_be_opened_has_a_reason():
    tree = trees.infiniband()
    tree.files["/dev/infiniband/uverbs1"] = PermissionError(1, "Operation not permitted")
    del tree.files["/dev/infiniband/uverbs2"]

    problems = [hca.device_problem for hca in probe(tree.context()).hcas]

    assert problems[:3] == [
        None,
        "/dev/infiniband/uverbs1: Operation not permitted",
        "/dev/infiniband/uverbs2 is not here",
    ]


def test_sixty_four_devices_with_full_tables_are_read_in_bounded_time(tmp_path: Path):
    tree = Tree()
    table = {index: (trees.full(f"10.{index}.0.1"), "RoCE v2", "eth0") for index in range(256)}
    for at in range(64):
        tree.hca(f"mlx5_{at}", f"0000:{at:02x}:00.0", at)
        tree.port(f"mlx5_{at}", layer="Ethernet", gids=table, slots=256)
    started = time.process_time()

    fact = probe(tree.context())

    assert sum(len(port.gids) for _, port in fact.ports()) == 64 * 256
    assert time.process_time() - started < 10


def test_states_and_counters_are_read_again_without_virtual_functions():
    fact = afterwards.probe(trees.virtual_functions().context())

    (port,) = fact.ports
    assert (port.hca, port.number, port.state, port.counters["link_downed"]) == ("mlx5_0", 1, "ACTIVE", 1)
    with pytest.raises(Absent):
        afterwards.probe(FakeContext())


# --- nodes together -------------------------------------------------------------------------------------


def test_hostile_names_are_not_put_into_commands():
    tree = Tree()
    tree.verbs("mlx5")
    for at in range(8):
        name = f"mlx5_{at}" if at else "$(reboot)"
        tree.hca(name, trees.bus(at), at)
        tree.port(name, layer="Ethernet", gids=trees.roce_table(f"eth{at}; reboot", f"10.{at}.0.1"))
        tree.netdev(f"eth{at}; reboot", mtu=1500 if at == 0 else 9000)
    tree.files[f"{trees.CLASS}/$(reboot)/ports/1/rate"] = "100 Gb/sec (1X NDR)\n"

    found = findings(tree, tree, NCCL_IB_HCA="mlx5_99") + findings(tree, tree)

    assert {one.code for one in found} >= {"DD562", "DD571"}
    remedies = [remedy for one in found for remedy in one.remedies]
    told = [
        *(line for one in remedies for line in one.commands),
        *(f"{each.value}" for one in remedies for each in one.settings),
    ]
    assert not [line for line in told if "reboot" in line]


def test_recorded_fact_survives_serialization():
    fact = probe(trees.with_storage(trees.roce()).context())

    assert RdmaFact.model_validate(json.loads(json.dumps(fact.recorded()))) == fact
