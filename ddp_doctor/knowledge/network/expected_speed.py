"""The expected speed of a collective of NCCL: a band of busbw, or None if unknown.

NCCL itself plans each call. For every algorithm and protocol it has a latency and a bandwidth, and uses the plan with
the lowest ``latency + bytes / bandwidth`` (src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime; since 2.31
src/tuning). data/nccl_tuning.csv has these numbers as the unchanged libnccl prints them (NCCL_DEBUG_SUBSYS=TUNING) on
simulated machines (tests/planted/tuning.py). The additional time of a call within a node is fitted to published curves
(data/published_bandwidth.ini, tests/published.py). Between nodes, published curves fit the plan without a correction.

No value is guessed: a machine, collective, network or size without a row or a curve has no band. Sizes and busbw are as
in nccl-tests: the size of an all_gather or reduce_scatter counts all ranks' shares.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ddp_doctor.knowledge.collectives import TABLE as COLLECTIVES
from ddp_doctor.knowledge.versions import Version, release

TABLE = Path(__file__).parent / "data/nccl_tuning.csv"
MIB, GIB = 1 << 20, 1 << 30

#: Upper edge over lower edge, by minimum size. Two published runs on the same hardware differ by as much: two p5 of AWS
#: give 343 and 167 GB/s at 256 MiB, 437 and 313 at 1 GiB, 444 and 438 at 2 GiB.
WIDTHS = ((GIB, 1.5), (64 * MIB, 2.0), (0, 2.5))
#: Minimum bytes with published curves that agree, by network, "" within a node. The smallest point for InfiniBand is
#: 512 MiB. Below 2 GiB, the cost of a call over EFA differs between three published clusters from 0.1 to 2 ms.
LEAST_BYTES = {"": 32 << 10, "IB": 512 * MIB, "AWS Libfabric": 2 * GIB}
#: Names of GPUs in torch and NVML, and in the table. H200 and H800 are H100 to NCCL.
_GPUS = (
    (r"\bA100-SXM", "A100 SXM"),
    (r"\bA100\b.*PCIE\b", "A100 PCIe"),
    (r"\bH[12]00 (NVL|PCIE)\b", "H100 NVL"),
    (r"\b(H100 80GB HBM3|H200|H800)$", "H100 SXM"),
    (r"\bGB200\b", "GB200"),
    (r"\bB200\b", "B200"),
)
#: First releases that know these GPUs. The table has only the newest: since 2.28 NCCL plans NVLink SHARP on Blackwell
#: with 0.74 of its rate, before with all of it, which gives 933 GB/s for eight B200 instead of the measured 846, and
#: 626 at 64 MiB instead of 401.
_KNOWN_SINCE = {"B200": (2, 27), "GB200": (2, 27)}
#: By powers of two, starting at 64 B: trees do not follow the plan at medium sizes, and NCCL multiplies their bandwidth
#: by these factors.
_OF_TREES = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *[0.6] * 6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
#: NCCL multiplies the latency of a ring across nodes by this ("plateau effect"), for A100 and later GPUs.
_PLATEAU = 1.4


@dataclass(frozen=True)
class Machine:
    """The participants: equal nodes with the same number of ranks, one per GPU."""

    gpu: str  # as torch and NVML name it: NVIDIA H100 80GB HBM3
    link: str  # nvidia-smi's code between the GPUs of a node: NV18
    ranks: int  # on each node
    nccl: str
    nodes: int = 1
    nics_mbps: tuple[int, ...] = ()  # of a node's adapters that NCCL uses
    network: str = ""  # NCCL's name of the network between nodes: IB, AWS Libfabric, Socket
    nvls: bool = True  # NVLink SHARP is available and not disabled


@dataclass(frozen=True)
class Band:
    """The expected busbw in GB/s, without an upper edge if only the minimum is known."""

    low: float
    high: float | None
    source: str

    @property
    def middle(self) -> float:
        """The geometric mean of the edges, or the lower edge if it is the only one."""
        return math.sqrt(self.low * self.high) if self.high is not None else self.low


@dataclass(frozen=True)
class Costs:
    """The cost of a call within a node in addition to NCCL's plan: µs, and a factor of the planned latency."""

    launch_us: float
    latency: float


#: Fitted by tests/published.py on 2026-11-27 to the curves of data/published_bandwidth.ini.
COSTS = Costs(launch_us=15.4, latency=2.0)


@dataclass(frozen=True)
class Plan:
    """A way to do a collective among some ranks: latency and transfer in µs."""

    ranks: int
    algorithm: str
    protocol: str
    latency: float
    transfer: float


@dataclass(frozen=True)
class Row:
    """A row of the table; a cell is algorithm, protocol, latency in µs and algbw in GB/s."""

    release: Version
    gpu: str
    nodes: int
    ranks: int
    cells: tuple[tuple[str, str, float, float], ...]

    def plan(self, collective: str, size_bytes: int, *, nvls: bool) -> Plan:
        """Return the plan that NCCL uses for this size: the fastest."""
        plans = [
            self._planned(cell, collective, size_bytes) for cell in self.cells if nvls or not cell[0].startswith("NVLS")
        ]
        return min(plans, key=lambda it: it.latency + it.transfer)

    def _planned(self, cell: tuple[str, str, float, float], collective: str, size_bytes: int) -> Plan:
        algorithm, protocol, latency, gb_per_s = cell
        corrected = algorithm == "Tree" or (algorithm == "NVLSTree" and self.gpu == "B200")  # the latter since 2.29.2
        step = (size_bytes >> 6).bit_length() - 1
        if collective == "all_reduce" and corrected and 0 <= step < len(_OF_TREES[protocol]):
            gb_per_s *= _OF_TREES[protocol][step]
        if collective == "all_reduce" and self.nodes > 1 and (algorithm, protocol) == ("Ring", "Simple"):
            latency *= _PLATEAU
        return Plan(self.nodes * self.ranks, algorithm, protocol, latency, size_bytes / gb_per_s / 1000)


def band(machine: Machine, collective: str, size_bytes: int) -> Band | None:
    """Return the expected busbw of a collective of this size, or None without a row and a curve."""
    rows = rows_of(machine, collective)
    if not rows or size_bytes < LEAST_BYTES[_between(machine)]:
        return None
    plans = [row.plan(collective, size_bytes, nvls=machine.nvls) for row in rows]
    speeds = [busbw(plan, machine, collective, size_bytes) for plan in plans]
    half = math.sqrt(width(size_bytes))
    return Band(min(speeds) / half, max(speeds) * half, _source(machine, rows))


def width(size_bytes: int) -> float:
    """Return the ratio of a band's upper edge to its lower edge."""
    return next(ratio for least, ratio in WIDTHS if size_bytes >= least)


def busbw(plan: Plan, machine: Machine, collective: str, size_bytes: int, costs: Costs = COSTS) -> float:
    """Return the busbw of a plan with these costs, in GB/s."""
    took_us = plan.latency + plan.transfer
    if machine.nodes == 1:
        took_us = costs.launch_us + costs.latency * plan.latency + plan.transfer
    return COLLECTIVES[collective].bus_factor(plan.ranks) * size_bytes / took_us / 1000


def rows_of(machine: Machine, collective: str) -> tuple[Row, ...]:
    """Return the row of a machine, or the rows of the next fewer and the next more nodes; () if unknown."""
    gpu = next((ours for name, ours in _GPUS if re.search(name, machine.gpu, re.IGNORECASE)), None)
    total = round(sum(machine.nics_mbps) / 8000) if machine.nodes > 1 else 0
    known = _table().get((gpu, machine.link, machine.ranks, total, collective), {})
    releases = [number for number in known if _KNOWN_SINCE.get(gpu or "", number) <= release(machine.nccl)]
    if not releases or _between(machine) not in LEAST_BYTES:
        return ()
    of_nodes = known[max(releases)]
    below = max((nodes for nodes in of_nodes if nodes <= machine.nodes), default=None)
    above = min((nodes for nodes in of_nodes if nodes >= machine.nodes), default=None)
    return tuple(of_nodes[nodes] for nodes in dict.fromkeys((below, above)) if nodes) if below and above else ()


def _between(machine: Machine) -> str:
    """Return the network of a collective, or "" within a node."""
    return machine.network if machine.nodes > 1 else ""


Key = tuple[str | None, str, int, int, str]


@lru_cache(maxsize=1)
def _table() -> dict[Key, dict[Version, dict[int, Row]]]:
    """Return rows by GPU, link, ranks, GB/s of a node's NICs and collective; then by release; then by nodes."""
    found: dict[Key, dict[Version, dict[int, Row]]] = {}
    with TABLE.open(newline="") as lines:
        for line in csv.DictReader(lines):
            number, nodes, ranks = release(line["release"]), int(line["nodes"]), int(line["ranks"])
            row = Row(number, line["gpu"], nodes, ranks, tuple(cells(line)))
            for collective in line["collectives"].split():
                key = (line["gpu"], line["link"], ranks, round(float(line["gb_per_s"])), collective)
                found.setdefault(key, {}).setdefault(number, {})[nodes] = row
    return found


def cells(line: Mapping[str, str]) -> Iterator[tuple[str, str, float, float]]:
    """Yield the cells of a line of the table, such as "15.0/80.6" in the column "Ring LL"."""
    for column, cell in line.items():
        algorithm, of_two, protocol = column.partition(" ")
        if of_two and cell:
            latency, gb_per_s = map(float, cell.split("/"))
            yield algorithm, protocol, latency, gb_per_s


def _source(machine: Machine, rows: Sequence[Row]) -> str:
    """Return the source of a band, for a finding."""
    table, its_own = rows[0].release, release(machine.nccl)
    nearest = "" if table == its_own else f" (the nearest to {machine.nccl})"
    of = f"{machine.ranks} {machine.gpu.removeprefix('NVIDIA ').split()[0]} joined by {machine.link}"
    checked = "launch cost fitted to published curves"
    if machine.nodes > 1:
        of = f"{' and '.join(str(row.nodes) for row in rows)} nodes of {of} over {machine.network}"
        checked = "published curves of this network agree with it"
    with_nvls = " with NVLS" if machine.nvls and any("NVLS" in cell[0] for cell in rows[0].cells) else ""
    return f"NCCL {'.'.join(map(str, table))}'s own tuning table{nearest} for {of}{with_nvls}; {checked}"
