"""How fast a collective of NCCL ought to be: a band of busbw, or None where nothing is known.

NCCL itself plans each call. For every algorithm and protocol it has a latency and a bandwidth, and takes the one whose
``latency + bytes / bandwidth`` is least (src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime; since 2.31
src/tuning). data/nccl_tuning.csv has these numbers as the unchanged libnccl prints them (NCCL_DEBUG_SUBSYS=TUNING) on
planted machines (tests/planted/tuning.py). What a call within a node takes beside that is fitted to curves that people
have published (data/published_bandwidth.ini, tests/published.py); between nodes their curves fit the plan as it is.

Nothing is guessed: a machine, collective, network or size without a row or a curve has no band. Sizes and busbw are
those of nccl-tests: of an all_gather and a reduce_scatter the size is that of all ranks' shares together.
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

#: Upper edge over lower edge, from this size on. Two published runs on the same hardware differ by as much: two p5 of
#: AWS give 343 and 167 GB/s at 256 MiB, 437 and 313 at 1 GiB, 444 and 438 at 2 GiB.
WIDTHS = ((GIB, 1.5), (64 * MIB, 2.0), (0, 2.5))
#: Bytes from which on curves are published and agree, by network, "" within a node. Of InfiniBand the smallest point is
#: 512 MiB. Below 2 GiB what a call costs over EFA differs between three published clusters from 0.1 to 2 ms.
LEAST_BYTES = {"": 32 << 10, "IB": 512 * MIB, "AWS Libfabric": 2 * GIB}
#: Names that torch and NVML give, and what the table calls these GPUs. H200 and H800 are H100 to NCCL.
_GPUS = (
    (r"\bA100-SXM", "A100 SXM"),
    (r"\bA100\b.*PCIE\b", "A100 PCIe"),
    (r"\bH[12]00 (NVL|PCIE)\b", "H100 NVL"),
    (r"\b(H100 80GB HBM3|H200|H800)$", "H100 SXM"),
    (r"\bGB200\b", "GB200"),
    (r"\bB200\b", "B200"),
)
#: Releases that know these GPUs. The table has the newest alone: since 2.28 NCCL plans NVLink SHARP on Blackwell with
#: 0.74 of its rate, before with all of it, 933 GB/s of eight B200 where 846 were measured and 626 at 64 MiB for 401.
_KNOWN_SINCE = {"B200": (2, 27), "GB200": (2, 27)}
#: From 64 B on, by powers of two: trees do not follow the plan at medium sizes, and NCCL corrects their bandwidth so.
_OF_TREES = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *[0.6] * 6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
#: NCCL's latency of a ring across nodes times this ("plateau effect"), of GPUs since A100.
_PLATEAU = 1.4


@dataclass(frozen=True)
class Machine:
    """What takes part: nodes that are alike, with as many ranks each, one a GPU."""

    gpu: str  # as torch and NVML name it: NVIDIA H100 80GB HBM3
    link: str  # nvidia-smi's code between the GPUs of a node: NV18
    ranks: int  # on each node
    nccl: str
    nodes: int = 1
    nics_mbps: tuple[int, ...] = ()  # of a node's adapters that NCCL uses
    network: str = ""  # NCCL's name of what it uses between nodes: IB, AWS Libfabric, Socket
    nvls: bool = True  # whether NVLink SHARP is there and not turned off


@dataclass(frozen=True)
class Band:
    """What busbw is to be expected, in GB/s; without an upper edge where only the least is known."""

    low: float
    high: float | None
    source: str

    @property
    def middle(self) -> float:
        """What is most to be expected."""
        return math.sqrt(self.low * self.high) if self.high is not None else self.low


@dataclass(frozen=True)
class Costs:
    """What a call takes within a node beside NCCL's plan: so many µs, and the planned latency so many times."""

    launch_us: float
    latency: float


#: Fitted by tests/published.py on 2026-11-27 to the curves of data/published_bandwidth.ini.
COSTS = Costs(launch_us=15.4, latency=2.0)


@dataclass(frozen=True)
class Plan:
    """One way to do a collective among so many ranks: latency and transfer in µs."""

    ranks: int
    algorithm: str
    protocol: str
    latency: float
    transfer: float


@dataclass(frozen=True)
class Row:
    """One row of the table; a cell is algorithm, protocol, latency in µs and algbw in GB/s."""

    release: Version
    gpu: str
    nodes: int
    ranks: int
    cells: tuple[tuple[str, str, float, float], ...]

    def plan(self, collective: str, size_bytes: int, *, nvls: bool) -> Plan:
        """What NCCL takes for this size: that with the least time."""
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
    """The busbw to be expected of a collective of this size; None where no row and no curve says."""
    rows = rows_of(machine, collective)
    if not rows or size_bytes < LEAST_BYTES[_between(machine)]:
        return None
    plans = [row.plan(collective, size_bytes, nvls=machine.nvls) for row in rows]
    speeds = [busbw(plan, machine, collective, size_bytes) for plan in plans]
    half = math.sqrt(width(size_bytes))
    return Band(min(speeds) / half, max(speeds) * half, _source(machine, rows))


def width(size_bytes: int) -> float:
    """Upper edge of a band over its lower edge."""
    return next(ratio for least, ratio in WIDTHS if size_bytes >= least)


def busbw(plan: Plan, machine: Machine, collective: str, size_bytes: int, costs: Costs = COSTS) -> float:
    """GB/s that a plan and the costs come to."""
    took_us = plan.latency + plan.transfer
    if machine.nodes == 1:
        took_us = costs.launch_us + costs.latency * plan.latency + plan.transfer
    return COLLECTIVES[collective].bus_factor(plan.ranks) * size_bytes / took_us / 1000


def rows_of(machine: Machine, collective: str) -> tuple[Row, ...]:
    """The row of a machine, or those of the next fewer and the next more nodes; none where nothing is known."""
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
    """The network that a collective goes over, "" within a node."""
    return machine.network if machine.nodes > 1 else ""


Key = tuple[str | None, str, int, int, str]


@lru_cache(maxsize=1)
def _table() -> dict[Key, dict[Version, dict[int, Row]]]:
    """Rows by GPU, link, ranks, GB/s of a node's NICs and collective; then by release; then by nodes."""
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
    """Those of a line of the table: under "Ring LL" stands "15.0/80.6"."""
    for column, cell in line.items():
        algorithm, of_two, protocol = column.partition(" ")
        if of_two and cell:
            latency, gb_per_s = map(float, cell.split("/"))
            yield algorithm, protocol, latency, gb_per_s


def _source(machine: Machine, rows: Sequence[Row]) -> str:
    """Where a band comes from, for a finding."""
    table, its_own = rows[0].release, release(machine.nccl)
    nearest = "" if table == its_own else f" (the nearest to {machine.nccl})"
    of = f"{machine.ranks} {machine.gpu.removeprefix('NVIDIA ').split()[0]} joined by {machine.link}"
    checked = "launch cost fitted to published curves"
    if machine.nodes > 1:
        of = f"{' and '.join(str(row.nodes) for row in rows)} nodes of {of} over {machine.network}"
        checked = "published curves of this network agree with it"
    with_nvls = " with NVLS" if machine.nvls and any("NVLS" in cell[0] for cell in rows[0].cells) else ""
    return f"NCCL {'.'.join(map(str, table))}'s own tuning table{nearest} for {of}{with_nvls}; {checked}"
