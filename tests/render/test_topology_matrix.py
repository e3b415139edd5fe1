import io
import re
from pathlib import Path

import pytest

from ddp_doctor.checks.node.topology.formats.topo_matrix import parse_matrices, parse_matrix
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.render.topology.report import matrix_rows, matrix_text, styled_matrix, topology_json

SAMPLES = Path(__file__).parents[1] / "samples" / "topology"

CLASSIC = """\
      GPU0  GPU1  NIC0  NIC1  NIC2  CPUs          NUMA  GPU NUMA ID
GPU0   X    SYS   SYS   SYS   NODE  0-31,64-95    0     N/A
GPU1  SYS    X    NODE  NODE  SYS   32-63,96-127  1     N/A
NIC0  SYS   NODE   X    PIX   SYS
NIC1  SYS   NODE  PIX    X    SYS
NIC2  NODE  SYS   SYS   SYS    X

NIC0 is mlx5_2
NIC1 is mlx5_3
NIC2 is mlx5_bond_0
SYS   across the link between CPU sockets or NUMA nodes: GPU0-GPU1
nearest NIC to GPU0: mlx5_bond_0 (NODE)
nearest NIC to GPU1: mlx5_2, mlx5_3 (NODE)"""


def read(name: str):
    return parse_matrix((SAMPLES / name).read_text())


def test_classic_machine_is_shown_on_a_terminal():
    assert matrix_text(read("classic-two-socket.txt")) == CLASSIC


def test_columns_that_the_driver_does_not_print_are_omitted():
    assert matrix_rows(read("driver-375-soc.txt"))[0][-1] == "CPUs"


def test_many_pairs_are_counted_and_unusual_ones_shown():
    assert "NV18  18 bonded NVLinks: 21 pairs of GPUs" in matrix_text(read("nvswitch-one-link-down.txt"))
    assert "NV1   1 bonded NVLink: GPU0-GPU1, " in matrix_text(read("driver-450-nvlink-mesh.txt"))
    assert "Unclear: GPU0-GPU2 reads NV12" in matrix_text(read("mig-rows-disagree.txt"))


def test_json_has_only_the_documented_keys():
    fact = TopologyFact(**dict(read("classic-two-socket.txt")), cpu_vendor="GenuineIntel")
    view = topology_json([fact])
    assert set(view) == {"topology"}
    assert set(view["topology"]) == {
        "gpus", "nics", "links", "cpu_affinity", "numa_affinity", "gpu_numa_id", "warnings",
    }  # fmt: skip
    assert view["topology"]["gpus"] == ["GPU0", "GPU1"]
    assert view["topology"]["nics"]["NIC2"] == "mlx5_bond_0"
    assert view["topology"]["links"]["GPU0"]["NIC2"] == "NODE"
    assert view["topology"]["warnings"] == []


def test_several_hosts_are_all_listed_without_null():
    hosts = parse_matrices((SAMPLES / "two-hosts.txt").read_text())
    view = topology_json(hosts)
    assert view["topology"] == view["topologies"][0]
    assert len(view["topologies"]) == 2
    assert topology_json([]) == {"topology": None}


def shown(*, force_terminal: bool) -> str:
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=200, force_terminal=force_terminal).print(
        styled_matrix(matrix_text(read("classic-two-socket.txt")))
    )
    return stream.getvalue()


def test_terminal_shows_each_code_in_the_color_of_its_distance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    colored = shown(force_terminal=True)

    assert "\x1b[31mSYS\x1b[0m" in colored
    assert "\x1b[32mPIX\x1b[0m" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == CLASSIC + "\n"


def test_pipe_gets_no_color(monkeypatch: pytest.MonkeyPatch):
    assert shown(force_terminal=False) == CLASSIC + "\n"


def test_no_color_variable_disables_color_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[3\d", shown(force_terminal=True))
