"""NCCL's own tuning table of simulated machines, as the data file for expected bandwidths.

    python -m tests.planted.tuning ddp_doctor/knowledge/network/data/nccl_tuning.csv

Needs root, as the lab does, a C compiler and NVIDIA's wheels; takes half an hour. No data moves: the numbers are NCCL's
plans, from which it chooses an algorithm.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import environ
from pathlib import Path

from ddp_doctor.knowledge import versions
from ddp_doctor.knowledge.network import expected_speed
from tests import rdma_trees
from tests.machines import parts, servers
from tests.machines.board import Board
from tests.machines.whole import Whole
from tests.nccl_wheels import libnccl
from tests.once import VARIABLE
from tests.planted import WAITS, at_random, libraries
from tests.planted.graph import decided
from tests.planted.tree import settings
from tests.planted.world import Machines
from tests.waiting import LIMIT_S
from tests.words import pairs

#: Bundled with torch 2.5 and 2.6, with 2.9 and 2.10, and the newest that the table of variables knows.
RELEASES = ("2.21.5", "2.27.5", "2.32.3")
PROGRAM = Path(__file__).with_name("ranks_of_host.py")
#: 8 bytes to 1 GiB.
SIZES = tuple(8 << step for step in range(0, 28, 3))
SPEAKS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"}
#: Columns of NCCL's table, three protocols each.
_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")
_COLLECTIVES = pairs("""
    AllReduce=all_reduce AllGather=all_gather ReduceScatter=reduce_scatter Broadcast=broadcast Reduce=reduce
""")
#: CollNet needs switches that add (SHARP), which are not planted.
CELLS = tuple(
    f"{algorithm} {protocol}"
    for algorithm in ("Tree", "Ring", "NVLS", "NVLSTree", "PAT")
    for protocol in _PROTOCOLS
    if algorithm in ("Tree", "Ring") or protocol == "Simple"
)
HEAD = ("release", "gpu", "link", "nodes", "ranks", "gb_per_s", "collectives", *CELLS)


#: InfiniBand's name of a rate of four lanes.
_NAMES = {100: "EDR", 200: "HDR", 400: "NDR"}


@dataclass(frozen=True)
class Kind:
    """A kind of machine as the file names it, and how many hosts and ranks of it are planted."""

    gpu: str
    link: str
    build: Callable[[int], Whole]
    ranks: Sequence[int]
    hosts: Sequence[int] = (1,)
    gb_per_s: int = 0  # of a node's NICs together


def hgx(node: int, nvml: dict[str, str], *, nics: int = 8, gbit: int = 400, paired: bool = False) -> Whole:
    """Eight GPUs behind NVSwitches, as in a DGX H100 or (``paired``) a DGX A100, and so many of eight rails."""
    board = Board()
    parts.linux(board, parts.EPYC if paired else parts.XEON, node=node)
    parts.dgx_tree(board, paired=paired)
    parts.driver(board, range(8), peermem=True, switches=True)
    tree = rdma_trees.infiniband(down=[at for at in range(8) if at % (8 // nics)])
    for path, text in tree.files.items():
        if path.endswith("/rate") and text == "400 Gb/sec (4X NDR)\n":
            tree.files[path] = f"{gbit} Gb/sec (4X {_NAMES[gbit]})\n"
    refused = board.rdma(tree, parts.rails(tree, paired=paired), node)
    for bus in (*parts.GPUS, *parts.NICS) if paired else ():
        at_random.link(board, f"0000:{bus}:00.0", 4, 16)
    return Whole(board, f"node{node}", nvml=nvml, uuids=str(node), refused=refused)


def bridged(model: str) -> Whole:
    """Four PCIe cards, bridged in pairs."""
    wiring = " ".join((*(f"{gpu}@0" for gpu in range(4)), "0:1=40/0/12", "2:3=40/0/12"))
    return replace(servers.h100_nvl(), nvml={"NVML_STAND_IN": f"{model},four", "NVML_STAND_IN_WIRING": wiring})


_A100 = {"NVML_STAND_IN": "a100", "NVML_STAND_IN_TOPOLOGY": "a100"}
_B200 = {"NVML_STAND_IN": "b200"}
_H800 = {"NVML_STAND_IN_WIRING": " ".join(f"{gpu}@{gpu // 4} {gpu}:8=0/0/8" for gpu in range(8))}
_ALL, _PARTS, _HOSTS = range(2, 9), (1, 2, 4, 8), (2, 4, 8)


def _rails(gpu: str, nvml: dict[str, str], nics: int, gbit: int, *more: int, paired: bool = False) -> Kind:
    """Return several hosts with these rails; ``more`` are additional numbers of hosts.

    With one A100 per host, NCCL 2.32.3 plans two rings over two NICs, 48 GB/s through its slot of 24: omitted.
    """

    def build(node: int) -> Whole:
        return hgx(node, nvml, nics=nics, gbit=gbit, paired=paired)

    parts_of_host = _PARTS[1:] if paired else _PARTS
    return Kind(gpu, "NV12" if paired else "NV18", build, parts_of_host, (*_HOSTS, *more), nics * gbit // 8)


KINDS = (
    Kind("A100 SXM", "NV12", lambda node: hgx(node, _A100, paired=True), _ALL),
    Kind("H100 SXM", "NV18", lambda node: hgx(node, {}), _ALL),
    Kind("H100 SXM", "NV8", lambda node: hgx(node, _H800), _ALL),
    Kind("B200", "NV18", lambda node: hgx(node, _B200), _ALL),
    Kind("GB200", "NV18", servers.gb200, (2, 3, 4)),
    Kind("A100 PCIe", "NV12", lambda _: bridged("a100_pcie"), (2,)),
    Kind("H100 NVL", "NV12", lambda _: bridged("h100_nvl"), (2,)),
    _rails("A100 SXM", _A100, 8, 200, paired=True),
    _rails("A100 SXM", _A100, 4, 100, paired=True),
    _rails("H100 SXM", {}, 8, 400, 16),
    _rails("H100 SXM", {}, 8, 200),
    _rails("H100 SXM", {}, 1, 400),
    _rails("B200", _B200, 8, 400),
)


def said(planted: Machines, release: str, each: int, sizes: Sequence[int] = ()) -> str:
    """Return rank 0's output with this number of ranks per machine, with an all-reduce of each size."""
    folder, library = Path(tempfile.mkdtemp(dir=planted.hosts[0].folder.parent)), libnccl(release)
    started = []
    for at, (host, machine) in enumerate(zip(planted.hosts, planted.machines, strict=True)):
        argv = (PROGRAM, library, at, len(planted.hosts), each, folder / "id", *sizes)
        env = {
            "LD_LIBRARY_PATH": str(libraries()),
            "LD_PRELOAD": str(libraries() / WAITS),
            **SPEAKS,
            **settings(machine, host.folder / "cpus.xml"),
            **(machine.nvml or {}),
        }
        started.append(host.start([sys.executable, *map(str, argv)], env=env))
    codes = [process.wait(4 * LIMIT_S) for process in started]
    words = started[0].output() + started[0].errors()
    assert set(codes) == {0}, (codes, words[-2000:])
    return words


Table = dict[str, dict[str, str]]


def table(words: str, older: Table | None = None) -> Table:
    found: dict[str, list[str]] = {}
    for name, line in re.findall(rf"NCCL INFO +({'|'.join(_COLLECTIVES)}) \|(.*)\|", words):
        found.setdefault(name, []).extend(cell.replace(" ", "") for cell in line.split("|"))
    columns = [f"{algorithm} {protocol}" for algorithm in _ALGORITHMS for protocol in _PROTOCOLS]
    return {
        (of := _COLLECTIVES[name]): {
            column: cell
            for column, cell in zip(columns, cells, strict=False)  # PAT came later
            if column in CELLS
            and float(cell.partition("/")[2]) > 0
            and not (older and "LL128" in column and column not in older[of])
        }
        for name, cells in found.items()
    }


@dataclass(frozen=True)
class Choice:
    """The algorithm and protocol of an all-reduce according to NCCL's table, and NCCL's choice."""

    size_bytes: int
    ours: str
    nccls: str


def choices(planted: Machines, release: str, each: int) -> Iterator[Choice]:
    older = table(said(planted, RELEASES[-2], each)) if release == RELEASES[-1] else None
    words = said(planted, release, each, SIZES)
    cells = tuple(expected_speed.cells(table(words, older)["all_reduce"]))
    row = expected_speed.Row(versions.release(release), "", len(planted.hosts), each, cells)
    for size, algorithm, protocol, *_ in decided(words).chosen:
        plan = row.plan("all_reduce", int(size), nvls=True)
        ours = f"{plan.algorithm} {plan.protocol}".upper()
        yield Choice(int(size), ours, f"{algorithm.replace('_', '')} {protocol}")


def rows(kind: Kind) -> Iterator[dict[str, object]]:
    for hosts in kind.hosts:
        with Machines([kind.build(node) for node in range(hosts)]) as planted:
            for each in kind.ranks:
                found: Table = {}
                for release in RELEASES:
                    found = table(said(planted, release, each), found if release == RELEASES[-1] else None)
                    if "B200" in kind.gpu and release != RELEASES[-1]:
                        continue  # plans it wrongly
                    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
                    for collective, cells in found.items():
                        alike.setdefault(tuple(cells.items()), []).append(collective)
                    of_kind = (release, kind.gpu, kind.link, hosts, each, kind.gb_per_s)
                    for shared, collectives in alike.items():
                        named = (*of_kind, " ".join(sorted(collectives)))
                        yield dict(zip(HEAD, named, strict=False)) | dict(shared)


def main(file: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-tests-") as share, file.open("w", newline="") as out:
        environ[VARIABLE] = share
        writer = csv.DictWriter(out, HEAD, restval="", lineterminator="\n")
        writer.writeheader()
        for kind in KINDS:
            writer.writerows(rows(kind))
            out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
