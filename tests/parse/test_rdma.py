"""RDMA devices in /sys, including unusual ones."""

from __future__ import annotations

import pytest

from ddp_doctor.checks.node.rdma.verbs_library import verbs_library, verbs_providers
from ddp_doctor.knowledge.network.rdma import verbs_mtu
from ddp_doctor.probing import rdma
from tests import rdma_trees as trees
from tests.fakes import FakeContext


@pytest.mark.parametrize(
    ("text", "gbit"),
    [
        ("400 Gb/sec (4X NDR)", 400.0),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("56 Gb/sec (4X FDR)", 56.0),
        ("800 Gb/sec (8X NDR)", 800.0),
        ("fast", None),
        ("", None),
    ],
)
def test_a_rate_is_read(text: str, gbit: float | None):
    tree = trees.Tree()
    tree.hca("mlx5_0", None, 0)
    tree.port("mlx5_0", rate=text)

    ((port,),) = [hca.ports for hca in rdma.read_hcas(tree.context(), ["mlx5_0"])]

    assert port.rate_gbit_per_s == gbit


def test_a_table_ends_after_a_row_of_empty_entries():
    table = {index: (trees.full(f"10.0.0.{index + 1}"), "RoCE v2", "eth0") for index in (0, 3, 15, 31, 60)}
    tree = trees.Tree()
    tree.hca("mlx5_0", None, 0)
    tree.port("mlx5_0", layer="Ethernet", gids=table, slots=256)

    ((port,),) = [hca.ports for hca in rdma.read_hcas(tree.context(), ["mlx5_0"])]

    assert [gid.index for gid in port.gids] == [0, 3, 15, 31]


@pytest.mark.parametrize(
    ("mtu", "packets"), [(1500, 1024), (2200, 2048), (4200, 4096), (9000, 4096), (1450, 1024), (300, 256), (0, 256)]
)
def test_mtu_determines_the_packet_size(mtu: int, packets: int):
    assert verbs_mtu(mtu) == packets


def test_library_is_found_in_the_directories_of_the_loader():
    conda = FakeContext(
        env={"LD_LIBRARY_PATH": ":/opt/conda/lib:"}, links={"/opt/conda/lib/libibverbs.so.1": "libibverbs.so.1.14"}
    )
    mofed = FakeContext(
        files={"/etc/ld.so.conf.d/mofed.conf": "# of MLNX_OFED\n/opt/mellanox/lib\n"},
        links={"/opt/mellanox/lib/libibverbs.so.1": "libibverbs.so.1.14"},
    )

    assert verbs_library(conda) == "/opt/conda/lib/libibverbs.so.1"
    assert verbs_library(mofed) == "/opt/mellanox/lib/libibverbs.so.1"
    assert verbs_library(FakeContext()) is None


def test_only_the_system_s_library_is_asked_for_its_drivers():
    context = trees.infiniband().context()

    assert verbs_providers(context, "/usr/lib/x86_64-linux-gnu/libibverbs.so.1") == ("mlx5",)
    assert verbs_providers(context, "/opt/conda/lib/libibverbs.so.1") is None
    assert verbs_providers(context, "/usr/local/lib/libibverbs.so.1") is None
    assert verbs_providers(context, None) is None


def test_efa_is_known_by_its_driver_whatever_udev_calls_it():
    kernel = FakeContext(files={f"{trees.CLASS}/efa_0/node_type": "7: <unknown>\n"})

    assert rdma.efa_names(trees.efa(2).context()) == ("rdmap0s6", "rdmap1s6")
    assert rdma.efa_names(kernel) == ("efa_0",)
    assert rdma.efa_names(trees.infiniband().context()) == ()
    assert rdma.efa_names(FakeContext()) == ()
