"""Healthy machines of bare metal with GPUs for data centers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ParamSpec

from ddp_doctor.model.context import Interface
from tests import rdma_trees
from tests.machines import parts
from tests.machines.board import CPUS, Board
from tests.machines.whole import Whole
from tests.nvml_stand_in.machine import BUSES

Given = ParamSpec("Given")


def _built_once(build: Callable[Given, Whole]) -> Callable[Given, Whole]:
    """Return a builder that copies the machine it built before: a copy takes a tenth of the time."""
    built: dict[str, Whole] = {}

    def copied(*args: Given.args, **more: Given.kwargs) -> Whole:
        key = f"{args} {more}"
        if key not in built:
            built[key] = build(*args, **more)
        return copy.deepcopy(built[key])

    return copied


@_built_once
def dgx_h100(node: int = 0, *, as_root: bool = False, host: str = "", acs: int = 0) -> Whole:
    """A DGX H100: eight GPUs behind NVSwitches, eight NDR rails, a card for storage, GPUDirect RDMA."""
    board = Board(as_root=as_root)
    parts.linux(board, node=node, cpus=224)
    parts.dgx_tree(board, acs=acs)
    parts.driver(board, range(8), peermem=True, switches=True)
    tree = rdma_trees.with_storage(rdma_trees.infiniband(), f"10.9.0.{1 + node}")
    refused = board.rdma(tree, parts.rails(tree), node)
    parts.everyday(board, "0000:43:00.0", "0000:40:00.0", "0000:05:00.0")
    return Whole(
        board,
        host or f"node{node}",
        nvml={},
        uuids=str(node),
        refused=refused,
        cpus=224,
        network=parts.interfaces(node, ipoib=True),
    )


@_built_once
def hgx_a100_roce(node: int = 0, *, as_root: bool = False) -> Whole:
    """An HGX A100 of eight with eight 200G RoCE rails and a bonded card for management; peermem of MOFED."""
    board = Board(as_root=as_root)
    parts.linux(board, parts.EPYC, node=node)
    parts.dgx_tree(board, "0x20b2")
    parts.driver(board, range(8), is_open=False, peermem=True, switches=True)
    tree = rdma_trees.roce(node)
    _slower(tree, "200 Gb/sec (4X HDR)", "MT4123", "MT_0000000224")
    bond = rdma_trees.bond()
    for name in ("infiniband/mlx5_bond_0", "infiniband_verbs/uverbs0", "net/"):
        kept = {path: text for path, text in bond.files.items() if name in path}
        tree.files |= {path.replace("uverbs0", "uverbs8"): text for path, text in kept.items()}
    tree.files["/dev/infiniband/uverbs8"] = OSError(22, "Invalid argument")
    tree.links |= {path: target for path, target in bond.links.items() if "bond" in path or "/net/" in path}
    places = parts.rails(tree) | {"mlx5_bond_0": ("0000:29:00.0", ("pci0000:26", "0000:26:01.0"), 0)}
    refused = board.rdma(tree, places, node)
    parts.everyday(board, "0000:1b:00.0", "0000:18:00.0", "0000:05:00.0")
    network = (
        Interface(name="bond0", addresses=(f"10.1.0.{1 + node}/24",), speed_mbps=50000),
        *(Interface(name=f"eth{at}", addresses=(f"10.{at}.0.{node + 1}/24",), mtu=9000) for at in range(8)),
    )
    nvml = {"NVML_STAND_IN": "a100", "NVML_STAND_IN_TOPOLOGY": "a100"}
    return Whole(board, f"node{node}", nvml=nvml, uuids=str(node), refused=refused, network=network)


def _slower(tree: rdma_trees.Tree, rate: str, kind: str, board_id: str) -> None:
    for path in tree.files:
        for ending, text in (("/rate", rate), ("/hca_type", kind), ("/board_id", board_id)):
            if path.startswith(rdma_trees.CLASS) and path.endswith(ending):
                tree.files[path] = f"{text}\n"


def a100_pcie(*, as_root: bool = False) -> Whole:
    """Return four A100 PCIe on separate root ports of a two-socket EPYC, two per socket, with one HDR card."""
    board = Board(as_root=as_root)
    parts.linux(board, parts.EPYC)
    for at, bus in enumerate(BUSES[:4]):
        place = (f"pci0000:{int(bus, 16) - 1:02x}", f"0000:{int(bus, 16) - 1:02x}:01.1")
        board.seat(f"0000:{bus}:00.0", place, device="0x20b5", node=at // 2, cpus=CPUS[at // 2])
    parts.driver(board, range(4), peermem=True)
    tree = rdma_trees.Tree()
    tree.verbs("mlx5")
    tree.hca("mlx5_0", "0000:a1:00.0", 0)
    tree.port("mlx5_0", rate="200 Gb/sec (4X HDR)")
    refused = board.rdma(tree, {"mlx5_0": ("0000:a1:00.0", ("pci0000:a0", "0000:a0:01.1"), 1)})
    parts.everyday(board, "0000:1b:00.0", "0000:a1:00.0")
    nvml = {"NVML_STAND_IN": "a100_pcie,four", "NVML_STAND_IN_TOPOLOGY": "pcie4"}
    return Whole(board, nvml=nvml, refused=refused, via=lambda _one, _two: "SHM/direct/direct")


def a10g_pcie() -> Whole:
    """Four A10G, two a PCIe switch, with access control on and an IOMMU that translates: no GPU reaches another."""
    board = Board()
    parts.linux(board, parts.EPYC, cpus=96)
    buses = [f"0000:{bus}:00.0" for bus in BUSES[:4]]
    for at, bus in enumerate(buses):
        root, port = 0x15 + 0x20 * (at // 2), f"0000:{0x17 + 0x20 * (at // 2):02x}:0{at % 2}.0"
        above = (f"pci0000:{root:02x}", f"0000:{root:02x}:01.1", f"0000:{root + 1:02x}:00.0", port)
        board.seat(bus, above, device="0x2237", acs=0x1D)
    board.iommu("DMA-FQ", buses)
    parts.driver(board, range(4))
    parts.everyday(board, buses[0])
    nvml = {"NVML_STAND_IN": "a10g,four", "NVML_STAND_IN_TOPOLOGY": "no_p2p"}
    return Whole(board, nvml=nvml, cpus=96, via=lambda _one, _two: "SHM/direct/direct")


def nic_beside_each_gpu(node: int = 0) -> Whole:
    """Return two A100 PCIe, one per socket, each with an HDR card below its PCIe switch.

    The network may then be faster than the link between the sockets.
    """
    board = Board()
    parts.linux(board, node=node)
    tree = rdma_trees.Tree()
    tree.verbs("mlx5")
    places = {}
    for at in range(2):
        board.seat(f"0000:{BUSES[at]}:00.0", parts.below(at, 0), device="0x20b5", node=at, cpus=CPUS[at])
        tree.hca(f"mlx5_{at}", f"0000:{parts.NICS[at]}:00.0", at)
        tree.port(f"mlx5_{at}", rate="200 Gb/sec (4X HDR)")
        places[f"mlx5_{at}"] = (f"0000:{parts.NICS[at]}:00.0", parts.below(at, 1), at)
    parts.driver(board, range(2), peermem=True)
    refused = board.rdma(tree, places, node)
    nvml = {"NVML_STAND_IN": "a100_pcie,two", "NVML_STAND_IN_TOPOLOGY": "pair"}
    return Whole(board, f"node{node}", nvml=nvml, uuids=str(node), refused=refused)


def h100_nvl(*, as_root: bool = False) -> Whole:
    """Four H100 NVL in bridged pairs, two a socket: 12 of 18 links by design, no fabric manager."""
    board = Board(as_root=as_root)
    parts.linux(board)
    for at, bus in enumerate(BUSES[:4]):
        place = (f"pci0000:{int(bus, 16) - 1:02x}", f"0000:{int(bus, 16) - 1:02x}:01.0")
        board.seat(f"0000:{bus}:00.0", place, device="0x2321", node=at // 4, cpus=CPUS[at // 4])
    parts.driver(board, range(4))
    parts.everyday(board, "0000:1b:00.0")
    nvml = {"NVML_STAND_IN": "h100_nvl,four", "NVML_STAND_IN_TOPOLOGY": "nvl"}
    return Whole(board, nvml=nvml, via=lambda one, two: "P2P/CUMEM" if one // 2 == two // 2 else "SHM/direct/direct")


#: Pairs of a DGX-1 without a link between them.
_NOT_JOINED = frozenset(
    (one, two) for one in range(8) for two in range(8) if (one // 4 != two // 4) and one % 4 != two % 4
)


def v100_dgx1(*, as_root: bool = False) -> Whole:
    """A DGX-1 with eight V100 in the hybrid mesh and four EDR cards."""
    board = Board(as_root=as_root)
    parts.linux(board, "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 79\n")
    tree = rdma_trees.Tree()
    tree.verbs("mlx5")
    places = {}
    for at, bus in enumerate(BUSES):
        pair, node = at // 2, at // 4
        up = (
            f"pci0000:{0x15 + 0x11 * pair:02x}",
            f"0000:{0x15 + 0x11 * pair:02x}:02.0",
            f"0000:{0x16 + 0x11 * pair:02x}:00.0",
        )
        board.seat(
            f"0000:{bus}:00.0",
            (*up, f"0000:{0x17 + 0x11 * pair:02x}:0{at % 2}.0"),
            device="0x1db5",
            node=node,
            cpus=CPUS[node],
        )
        if at % 2:
            tree.hca(f"mlx5_{pair}", f"0000:f{pair}:00.0", pair, hca_type="MT4115", board_id="MT_2180110032")
            tree.port(f"mlx5_{pair}", rate="100 Gb/sec (4X EDR)")
            places[f"mlx5_{pair}"] = (f"0000:f{pair}:00.0", (*up, f"0000:{0x17 + 0x11 * pair:02x}:02.0"), node)
    parts.driver(board, range(8), is_open=False, peermem=True)
    parts.everyday(board, "0000:1b:00.0", "0000:f0:00.0")
    refused = board.rdma(tree, places)
    nvml = {"NVML_STAND_IN": "v100", "NVML_STAND_IN_TOPOLOGY": "dgx1"}
    return Whole(
        board,
        nvml=nvml,
        refused=refused,
        via=lambda one, two: "P2P/indirect/3[3]" if (one, two) in _NOT_JOINED else "P2P/CUMEM",
    )


def gb200(node: int = 0, *, as_root: bool = False) -> Whole:
    """A tray of an NVL72: four GB200, each below its own Grace, four NICs, two of the CPUs with memory for GPUs."""
    board = Board(as_root=as_root)
    parts.linux(board, parts.GRACE, node=node, cpus=144)
    domains = ("0008", "0009", "0018", "0019")
    for at, domain in enumerate(domains):
        board.seat(
            f"{domain}:01:00.0",
            (f"pci{domain}:00", f"{domain}:00:00.0"),
            device="0x2941",
            node=at // 2,
            cpus=CPUS[at // 2],
        )
    parts.driver(board, range(4))
    parts.everyday(board, "0008:01:00.0", "0000:03:00.0")
    tree = rdma_trees.Tree()
    tree.verbs("mlx5")
    places = {}
    for at, domain in enumerate(("0000", "0002", "0010", "0012")):
        tree.hca(f"mlx5_{at}", f"{domain}:03:00.0", at)
        tree.port(f"mlx5_{at}")
        places[f"mlx5_{at}"] = (
            f"{domain}:03:00.0",
            (f"pci{domain}:00", f"{domain}:00:00.0", f"{domain}:01:00.0", f"{domain}:02:00.0"),
            at // 2,
        )
    refused = board.rdma(tree, places, node)
    buses = ",".join(f"0000{domain}:01:00.0" for domain in domains)
    nvml = {"NVML_STAND_IN": "gb200,four", "NVML_STAND_IN_TOPOLOGY": "c2c", "NVML_STAND_IN_BUSES": buses}
    return Whole(
        board, f"node{node}", nvml=nvml, uuids=str(node), refused=refused, cpus=144, network=parts.interfaces(node)
    )


def gh200(*, as_root: bool = False) -> Whole:
    """Return one GH200: a GPU next to its Grace."""
    board = Board(as_root=as_root)
    parts.linux(board, parts.GRACE, cpus=72)
    board.seat("0009:01:00.0", ("pci0009:00", "0009:00:00.0"), device="0x2342", cpus="0-71")
    parts.driver(board, range(1))
    parts.everyday(board, "0009:01:00.0")
    nvml = {"NVML_STAND_IN": "gh200,one", "NVML_STAND_IN_TOPOLOGY": "c2c", "NVML_STAND_IN_BUSES": "00000009:01:00.0"}
    return Whole(board, nvml=nvml, cpus=72)


def mig() -> Whole:
    """A DGX H100 whose GPUs are all in slices."""
    machine = dgx_h100()
    machine.nvml = {"NVML_STAND_IN": "mig_all"}
    return machine


def cpus_with_infiniband() -> Whole:
    """Two CPUs, one NDR card, no GPU."""
    board = Board()
    parts.linux(board)
    tree = rdma_trees.Tree()
    tree.verbs("mlx5")
    tree.hca("mlx5_0", "0000:a1:00.0", 0)
    tree.port("mlx5_0")
    refused = board.rdma(tree, {"mlx5_0": ("0000:a1:00.0", ("pci0000:a0", "0000:a0:01.1"), 1)})
    machine = Whole(board, refused=refused, limits={"MEMLOCK": 65536, "NOFILE": 1024})
    machine.installed = {
        **(machine.installed or {}),
        "torch_cuda": None,
        "torch_cuda_library": None,
        "torch_version": "2.9.1+cpu",
    }
    return machine
