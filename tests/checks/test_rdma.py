"""The rdma check: machines made of /sys files, read by the real probe, and what each means for a job."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.node.rdma import CHECK, probe
from ddp_doctor.engine.collect import read_check
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Severity, Status
from ddp_doctor.model.fact import Absent, Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Node, Options, Recording, World
from ddp_doctor.sources.machine import LiveContext
from tests import rdma_trees as trees
from tests.fakes import FakeContext
from tests.rdma_trees import Tree
from tests.readings import findings_of

NEW = "2.27.5"


def recording(
    *machines: Tree | None,
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    nccl: str | None = NEW,
    command: str = "run",
    **world: Any,
) -> Recording:
    """A run of these machines, one per node; None has no RDMA device. ``env`` is of all nodes, or of each."""
    envs = [env or {}] * len(machines) if env is None or isinstance(env, Mapping) else list(env)
    shape: dict[str, Any] = {"nnodes": len(machines), "nproc_per_node": 8, "backend": "nccl", **world}
    contexts = [
        FakeContext(env=one, files=tree.files if tree else {}, links=tree.links if tree else {}, node=at)
        for at, (tree, one) in enumerate(zip(machines, envs, strict=True))
    ]
    readings = [read_check(CHECK, context) for context in contexts]
    if nccl:
        software = Software(python="3.11.7", machine="x86_64", nccl_loaded=nccl).recorded()
        readings += [
            Reading(check="software", status=Status.COLLECTED, node=at, fact=software) for at in range(len(machines))
        ]
    nodes = tuple(Node(node_rank=at, hostname=f"node{at}") for at in range(len(machines)))
    size = shape["nnodes"] * shape["nproc_per_node"]
    return Recording(
        world=World(world_size=size, nodes=nodes, **shape) if command == "run" else None,
        options=Options(command=command),
        readings=tuple(readings),
    )


def findings(seen: Recording) -> list[Finding]:
    assert all(reading.status in (Status.COLLECTED, Status.ABSENT) for reading in seen.readings), seen.readings
    return findings_of(CHECK, seen)


def verdicts(seen: Recording) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity.value) for finding in findings(seen)]


def only(seen: Recording) -> Finding:
    (finding,) = findings(seen)
    return finding


def settings(finding: Finding) -> list[tuple[str, str, str | None]]:
    return [(one.action, one.name, one.value) for remedy in finding.remedies for one in remedy.settings]


def commands(finding: Finding) -> list[str]:
    return [line for remedy in finding.remedies for line in remedy.commands]


# --- the probe ------------------------------------------------------------------------------------------


def test_a_machine_without_rdma_is_absent_and_costs_nothing(tmp_path: Path):
    started = time.process_time()

    for folder in ("", "sys/class/infiniband"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        with pytest.raises(Absent, match="no RDMA device"):
            probe(LiveContext({}, time.monotonic() + 60, root=str(tmp_path)))

    assert time.process_time() - started < 0.5


def test_a_machine_on_disk_is_read_as_the_one_in_memory(tmp_path: Path):
    tree = trees.with_storage(trees.infiniband(down=[3]))
    tree.write(tmp_path)

    fact = probe(LiveContext({"NCCL_IB_HCA": "mlx5_0"}, time.monotonic() + 60, root=str(tmp_path)))

    read = probe(tree.context({"NCCL_IB_HCA": "mlx5_0"}))
    assert fact.model_copy(update={"hcas": ()}) == read.model_copy(update={"hcas": ()})
    assert [hca.model_copy(update={"ports": ()}) for hca in fact.hcas] == [
        hca.model_copy(update={"ports": ()}) for hca in read.hcas
    ]
    assert [port.state for _, port in fact.ports()] == [port.state for _, port in read.ports()]


def test_everything_of_a_port_is_read():
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


def test_a_bond_is_read_with_what_it_is_made_of():
    fact = probe(trees.bond().context())

    ((hca, port),) = fact.chosen()
    netdev = fact.netdev(port)
    assert hca.name == "mlx5_bond_0"
    assert netdev is not None
    assert (netdev.bond_mode, netdev.slaves) == ("802.3ad", ("ens1f0np0", "ens1f1np1"))
    assert [one.master for one in fact.netdevs if one.name.startswith("ens")] == ["bond0", "bond0"]


def test_efa_is_recognised_and_nothing_that_nccl_itself_could_drive():
    fact = probe(trees.efa().context())

    assert [hca.is_efa for hca in fact.hcas] == [True] * 4
    assert fact.candidates() == []


def test_devices_are_counted_as_people_do_and_chosen_by_pci_address():
    fact = probe(trees.virtual_functions().context())

    assert [hca.name for hca in fact.hcas][:12] == [f"mlx5_{at}" for at in range(12)]
    assert fact.hcas[0].virtual_functions == 62
    assert sum(hca.is_virtual_function for hca in fact.hcas) == 62


def test_a_device_that_may_not_be_opened_says_why():
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


# --- the rules ------------------------------------------------------------------------------------------


def of_no_types(tree: Tree) -> Tree:
    tree.files = {path: text for path, text in tree.files.items() if "gid_attrs" not in path}
    return tree


HALF = trees.infiniband(down=[1, 3, 5, 7])
GLOO = {"backend": "gloo"}


@pytest.mark.parametrize(
    ("machines", "given", "expected"),
    [
        pytest.param([HALF, HALF], {}, [], id="ports unused by design"),
        pytest.param([HALF], {"command": "prolog"}, [], id="the same before a job"),
        pytest.param([trees.container(trees.roce(addressed=False, without=[0])), None], GLOO, [("DD573", "info")]),
        pytest.param(
            [trees.roce(carrier_changes={1: 300}), trees.roce()], {}, [("DD565", "warning")], id="Ethernet flaps"
        ),
        pytest.param(
            [trees.infiniband(counters={6: {"link_downed": 12}}), trees.infiniband()], {}, [], id="a few drops"
        ),
        pytest.param([trees.infiniband()] * 2, {"env": {"NCCL_IB_HCA": "mlx5"}}, [], id="a common prefix"),
        pytest.param([of_no_types(trees.roce(addressed=False))] * 2, {}, [], id="a kernel that tells no types"),
    ],
)
def test_rules_on_whole_machines(machines: list[Tree | None], given: Any, expected: list[tuple[str, str]]):
    assert verdicts(recording(*machines, **given)) == expected


def test_the_last_port_that_the_setting_names_is_down():
    env = {"NCCL_IB_HCA": "=mlx5_3"}

    found = findings(recording(trees.infiniband(down=[3]), trees.infiniband(), env=env))

    assert ("DD560", Severity.ERROR) in [(one.code, one.severity) for one in found]
    assert "named in NCCL_IB_HCA" in found[0].evidence[0].text


@pytest.mark.parametrize(
    ("init", "nodes", "severity"), [((2,), 1, "info"), ((2,), 2, "warning"), (range(8), 2, "error")]
)
def test_links_without_a_subnet_manager(init: Sequence[int], nodes: int, severity: str):
    machines = [trees.infiniband(init=init) for _ in range(nodes)]

    finding = only(recording(*machines))

    assert (finding.code, finding.severity.value) == ("DD561", severity)
    assert "state INIT" in finding.evidence[0].text


def test_a_single_new_card_at_the_oldest_speed():
    tree = trees.infiniband()
    machine = Tree(
        {path: text for path, text in tree.files.items() if "mlx5_0" in path or "/uverbs0" in path or "/etc/" in path},
        tree.links,
    )
    machine.port("mlx5_0", rate="10 Gb/sec (4X SDR)")

    assert verdicts(recording(machine, machine)) == [("DD562", "warning")]


# --- NCCL_IB_HCA ----------------------------------------------------------------------------------------


def test_one_name_of_several_that_is_missing():
    env = {"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_12"}

    finding = only(recording(trees.infiniband(), trees.infiniband(), env=env))

    assert (finding.code, finding.severity) == ("DD571", Severity.WARNING)
    assert "names mlx5_12, which node0 and node1 do not have" in finding.title


# --- addresses ------------------------------------------------------------------------------------------


def test_ipv6_alone_is_advised_where_all_have_it():
    machines = [trees.roce(node, addressed=False) for node in range(2)]
    for node, tree in enumerate(machines):
        for at in range(8):
            place = f"{trees.CLASS}/mlx5_{at}/ports/1"
            tree.files[f"{place}/gids/2"] = trees.full(f"2001:db8:{at}::{node + 1}")
            tree.files[f"{place}/gid_attrs/types/2"] = "RoCE v2\n"

    assert ("set", "NCCL_IB_ADDR_FAMILY", "AF_INET6") in settings(only(recording(*machines)))
    assert verdicts(recording(*machines, env={"NCCL_IB_ADDR_FAMILY": "AF_INET6"})) == []


def test_an_old_nccl_on_nodes_with_other_tables_gets_an_index_for_each():
    finding = only(recording(trees.roce(0), trees.roce(1, shift=2), nccl="2.19.3"))

    each = [(one.node, one.name, one.value) for remedy in finding.remedies for one in remedy.settings]
    assert each == [("node0", "NCCL_IB_GID_INDEX", "3"), ("node1", "NCCL_IB_GID_INDEX", "5")]


@pytest.mark.parametrize(("nccl", "codes"), [("2.23.4", ["DD569"]), ("2.26.2", []), (None, [])])
def test_pods_with_interfaces_of_their_own(nccl: str | None, codes: list[str]):
    pods = [trees.macvlan_pod(trees.roce(node), 4, f"10.50.{node}") for node in range(2)]

    found = findings(recording(*pods, nccl=nccl))

    assert [one.code for one in found] == codes
    assert all(one.severity is Severity.ERROR for one in found)


# --- access ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed", [False, True])  # TCP costs too much, or does not reach the other node
def test_an_image_without_the_library(mixed: bool):
    slim = trees.infiniband()
    slim.links = {path: to for path, to in slim.links.items() if "libibverbs" not in path}

    other = trees.infiniband() if mixed else slim

    assert verdicts(recording(slim, other)) == [("DD574", "error")]


def test_an_image_with_the_library_and_without_its_drivers():
    slim = trees.infiniband()
    del slim.files["/etc/libibverbs.d/mlx5.driver"]

    finding = only(recording(slim, slim))

    assert finding.code == "DD574"
    assert "/etc/libibverbs.d has no driver for mlx5" in finding.title


# --- nodes together -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        pytest.param([trees.bond(down="ens1f1np1", ups=0)] * 2, ["info"], id="one cable by design"),
        pytest.param([trees.bond(down="ens1f1np1", ups=2)] * 2, ["warning"], id="had its link"),
        pytest.param([trees.bond(down="ens1f1np1", ups=0), trees.bond()], ["warning"], id="others are whole"),
        pytest.param([trees.bond(slaves="ens1f0np0")] * 2, [], id="a bond of one"),
        pytest.param([trees.bond(down="ens1f1np1"), trees.bond(slaves="ens1f0np0")], ["warning"], id="mixed"),
        pytest.param([trees.bond(down="ens1f1np1")], ["info"], id="a run of one node"),
    ],
)
def test_a_slave_that_is_down_is_a_warning_where_it_was_up_or_others_are(machines: list[Tree], expected: list[str]):
    assert verdicts(recording(*machines)) == [("DD576", severity) for severity in expected]


def test_a_slave_of_hostile_name_reaches_no_command():
    name = "a;reboot"
    finding = only(recording(trees.bond(down=name, slaves=f"ens1f0np0 {name}"), command="prolog"))

    assert commands(finding) == ["cat /proc/net/bonding/bond0"]


def test_infiniband_on_one_node_and_ethernet_on_the_other_do_not_meet():
    finding = only(recording(trees.infiniband(), trees.roce(1)))

    assert (finding.code, finding.severity) == ("DD575", Severity.ERROR)
    assert finding.detail == "InfiniBand ports cannot connect to Ethernet ports."


def test_hostile_names_reach_no_command():
    tree = Tree()
    tree.verbs("mlx5")
    for at in range(8):
        name = f"mlx5_{at}" if at else "$(reboot)"
        tree.hca(name, trees.bus(at), at)
        tree.port(name, layer="Ethernet", gids=trees.roce_table(f"eth{at}; reboot", f"10.{at}.0.1"))
        tree.netdev(f"eth{at}; reboot", mtu=1500 if at == 0 else 9000)
    tree.files[f"{trees.CLASS}/$(reboot)/ports/1/rate"] = "100 Gb/sec (1X NDR)\n"

    found = findings(recording(tree, tree, env={"NCCL_IB_HCA": "mlx5_99"})) + findings(recording(tree, tree))

    assert {one.code for one in found} >= {"DD562", "DD571"}
    told = [line for one in found for line in commands(one)] + [
        value or "" for one in found for _, _, value in settings(one)
    ]
    assert not [line for line in told if "reboot" in line]


def test_a_recorded_fact_survives_being_written():
    fact = probe(trees.with_storage(trees.roce()).context())

    assert RdmaFact.model_validate(json.loads(json.dumps(fact.recorded()))) == fact
