"""Bandwidths between pairs as a grid: of ranks, or of nodes where there are more ranks than a page shows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from ddp_doctor.model.report import Report
from ddp_doctor.render.text import amount

#: More ends than this are no grid that a person reads.
_MOST_ENDS = 32
#: Shares of the median at which a cell gets the next darker shade.
_SHADES = (1 / 3, 2 / 3, 0.9)

#: Of the median; slower grids are told in MB/s.
_LEAST_IN_GB_PER_S = 1e8

Ends = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Cell:
    """One pair: its rate in the grid's unit, its shade from 0 for the slowest, and itself in a sentence."""

    text: str
    shade: int
    words: str


@dataclass(frozen=True)
class HeatMap:
    """A grid; a cell is None where a pair was not measured."""

    title: str
    unit: str
    ends: tuple[str, ...]
    rows: tuple[tuple[Cell | None, ...], ...]
    slowest: str
    typical: str
    note: str = ""


def heat_maps(report: Report) -> Iterator[HeatMap]:
    """What ranks exchanged with each other, and what nodes sent each other."""
    between_ranks = {
        (int(measured.labels["rank"]), int(measured.labels["peer"])): measured.value
        for measured in report.measurements
        if measured.name == "p2p_bandwidth"
    }
    names = {node.node_rank: node.hostname for node in report.nodes}
    if between_ranks:
        both_ways = {**{(peer, rank): rate for (rank, peer), rate in between_ranks.items()}, **between_ranks}
        of_ranks = {rank for ends in both_ways for rank in ends}
        world = report.world
        if len(of_ranks) <= _MOST_ENDS or world is None or world.nnodes < 2:
            yield _grid("Exchanges between ranks", both_ways, {rank: f"rank {rank}" for rank in of_ranks})
        else:
            node_of = {rank: world.node_of(rank) for rank in of_ranks}
            nodes: dict[tuple[int, int], float] = {}
            for (rank, peer), rate in both_ways.items():
                ends = (node_of[rank], node_of[peer])
                nodes[ends] = min(rate, nodes.get(ends, rate))
            yield _grid("The slowest exchange between ranks of each two nodes", nodes, names)
    between_nodes = {
        (int(measured.labels["node"]), int(measured.labels["peer"])): measured.value
        for measured in report.measurements
        if measured.name == "reach_throughput"
    }
    if between_nodes:
        yield _grid("TCP between nodes, from the row to the column", between_nodes, names)


def _grid(title: str, rates: Ends, names: Mapping[int, str]) -> HeatMap:
    typical = median(rates.values())
    ends = sorted({end for pair in rates for end in pair})
    note = ""
    if len(ends) > _MOST_ENDS:
        least = {end: min(rate for pair, rate in rates.items() if end in pair) for end in ends}
        note = f"Shown are the {_MOST_ENDS} of {len(ends)} with the slowest pairs."
        ends = sorted(sorted(ends, key=least.__getitem__)[:_MOST_ENDS])
    unit, scale = ("GB/s", 1e9) if typical >= _LEAST_IN_GB_PER_S else ("MB/s", 1e6)
    labels = {end: names.get(end, f"node rank {end}") for end in ends}
    slow = min(rates, key=rates.__getitem__)
    return HeatMap(
        title,
        unit,
        tuple(labels.values()),
        tuple(tuple(_cell(rates, (row, column), typical, scale, labels) for column in ends) for row in ends),
        f"{labels[slow[0]]} to {labels[slow[1]]}, {amount(rates[slow], 'B/s')}",
        amount(typical, "B/s"),
        note,
    )


def _cell(rates: Ends, ends: tuple[int, int], typical: float, scale: float, labels: Mapping[int, str]) -> Cell | None:
    rate = rates.get(ends)
    if rate is None:
        return None
    shade = sum(rate >= share * typical for share in _SHADES)
    return Cell(f"{rate / scale:.3g}", shade, f"{labels[ends[0]]} to {labels[ends[1]]}: {amount(rate, 'B/s')}")
