"""Two real A100 80GB PCIe joined by 12 NVLinks, as NCCL 2.27.7 described them, and the same two planted.

The figures are of nccl.log in github.com/Timez-zx/nccl-tests (one process, all_reduce_perf, CUDA 13.0, Ice Lake,
a ConnectX card with two RoCE ports of 100 Gbit/s, no GPUDirect RDMA).
"""

from __future__ import annotations

from tests import rdma_trees
from tests.machines import parts
from tests.machines.board import Board
from tests.machines.whole import Whole
from tests.planted.at_random import link
from tests.planted.graph import Decided

REAL_TWO_A100 = Decided(
    most_gb_per_s="240.0",
    channels="24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer",
    patterns=(
        ("4", "12", "20.000000", "20.000000", "NVL/PIX", "1"),
        ("1", "12", "40.000000", "40.000000", "NVL/PIX", "0"),
    ),
    trees=(
        "1/-1/-1->0->-1",
        *("1/-1/-1->0->-1",) * 5,
        *("-1/-1/-1->0->1",) * 6,
        *("1/-1/-1->0->-1",) * 6,
        *("-1/-1/-1->0->1",) * 6,
    ),
    allreduce=(
        *("8.0/37.9", "16.5/112.0", "16.4/144.0", "7.8/87.7", "17.8/220.8", "15.2/240.0"),
        *("0.8/0.0", "0.8/0.0", "39.2/0.0"),
        *("0.0/0.0", "0.0/0.0", "35.6/0.0", "0.0/0.0", "0.0/0.0", "0.0/0.0", "0.0/0.0", "0.0/0.0", "0.0/0.0"),
        *("0.0/0.0", "0.0/0.0", "0.0/0.0"),
    ),
    chosen=(),
)


def two_a100() -> Whole:
    board = Board()
    parts.linux(board, "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\n")
    for bus in ("17", "65"):
        root = f"{int(bus, 16) - 1:02x}"
        board.seat(f"0000:{bus}:00.0", (f"pci0000:{root}", f"0000:{root}:02.0"), device="0x20b5")
        link(board, f"0000:{bus}:00.0", 4, 16)
    parts.driver(board, range(2), is_open=False)
    tree = rdma_trees.Tree()
    tree.verbs("mlx5")
    for port in (0, 1):
        tree.hca(f"mlx5_{port}", f"0000:4b:00.{port}", port)
        gids = rdma_trees.roce_table(f"eth{port}", f"10.{port}.0.1")
        tree.port(f"mlx5_{port}", layer="Ethernet", rate="100 Gb/sec (4X EDR)", gids=gids)
    places = {f"mlx5_{port}": (f"0000:4b:00.{port}", ("pci0000:4a", "0000:4a:02.0"), 0) for port in (0, 1)}
    refused = board.rdma(tree, places)
    nvml = {
        "NVML_STAND_IN": "a100_pcie,two",
        "NVML_STAND_IN_BUSES": "00000000:17:00.0,00000000:65:00.0",
        "NVML_STAND_IN_PCIE": "4x16,4x16",
        "NVML_STAND_IN_WIRING": "0@0 1@0 0:1=40/0/12",
    }
    return Whole(board, nvml=nvml, refused=refused)
