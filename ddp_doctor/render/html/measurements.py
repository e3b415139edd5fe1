"""The measurements of the page: all-reduces as rows with a bar each, and bandwidths between pairs as grids."""

from collections.abc import Iterator, Mapping
from statistics import median

from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.render import tables
from ddp_doctor.render.text import amount
from ddp_doctor.render.used_transports import slowest_p2p

#: More ends than this are no grid that a person reads: then nodes stand for their ranks.
_MOST_ENDS = 32
#: Shares of the median at which a cell gets the next darker shade.
_SHADES = (1 / 3, 2 / 3, 0.9)
#: Of the median; slower grids are told in MB/s.
_LEAST_IN_GB_PER_S = 1e8

Ends = Mapping[tuple[int, int], float]
Part = dict[str, object]


def bandwidth(report: Report, recording: Recording) -> Part | None:
    """The bus bandwidths of the slowest rank by size, beside the rate that large messages should reach.

    Bars and that rate are in percent of the width. None where nothing was measured.
    """
    rows, untested = tables.rows(report.measurements), list(tables.untested(report.measurements))
    if not rows and not untested:
        return None
    expected, source = _expected(report, recording)
    widest = max(*(busbw for *_, busbw, _ in rows), expected, 0.0) or 1.0
    sizes = [
        {
            "size": amount(size, "B"),
            "time": amount(float(f"{time_us:.4g}") / 1e6, "s"),
            "algbw": f"{algbw:.2f}",
            "busbw": f"{busbw:.2f}",
            "wrong": wrong,
            "percent": 100 * busbw / widest,
        }
        for size, time_us, algbw, busbw, wrong in rows
    ]
    words = f"{expected:.3g} GB/s, {source}" if expected else ""
    return {"sizes": sizes, "untested": untested, "expected": words, "expected_percent": 100 * expected / widest}


def _expected(report: Report, recording: Recording) -> tuple[float, str]:
    """GB/s that large messages should reach, and who says so; a finding's before the constants of NCCL."""
    for finding in report.findings:
        for item in finding.evidence:
            if item.check == "allreduce" and item.unit == "GB/s" and item.expected:
                return item.expected, item.expected_from or finding.code
    rate = slowest_p2p(recording)
    return (rate, "NCCL's own constants for the slowest pair of GPUs") if rate else (0.0, "")


def heat_maps(report: Report) -> Iterator[Part]:
    """What ranks exchanged with each other, and what nodes sent each other."""
    between_ranks = _rates(report, "p2p_bandwidth", "rank")
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
    if between_nodes := _rates(report, "reach_throughput", "node"):
        yield _grid("TCP between nodes, from the row to the column", between_nodes, names)


def _rates(report: Report, name: str, end: str) -> Ends:
    measured = (measurement for measurement in report.measurements if measurement.name == name)
    return {(int(one_way.labels[end]), int(one_way.labels["peer"])): one_way.value for one_way in measured}


def _grid(title: str, rates: Ends, names: Mapping[int, str]) -> Part:
    """One grid. A cell is None where its pair was not measured; its shade is 0 for the slowest."""
    typical = median(rates.values())
    ends = sorted({end for pair in rates for end in pair})
    note = ""
    if len(ends) > _MOST_ENDS:
        least = {end: min(rate for pair, rate in rates.items() if end in pair) for end in ends}
        note = f"Shown are the {_MOST_ENDS} of {len(ends)} with the slowest pairs."
        ends = sorted(sorted(ends, key=least.__getitem__)[:_MOST_ENDS])
    unit, scale = ("GB/s", 1e9) if typical >= _LEAST_IN_GB_PER_S else ("MB/s", 1e6)
    labels = {end: names.get(end, f"node rank {end}") for end in ends}

    def words(pair: tuple[int, int], sign: str) -> str:
        return f"{labels[pair[0]]} to {labels[pair[1]]}{sign} {amount(rates[pair], 'B/s')}"

    def cell(pair: tuple[int, int]) -> Part | None:
        if pair not in rates:
            return None
        shade = sum(rates[pair] >= share * typical for share in _SHADES)
        return {"text": f"{rates[pair] / scale:.3g}", "shade": shade, "words": words(pair, ":")}

    return {
        "title": title,
        "unit": unit,
        "ends": list(labels.values()),
        "rows": [[cell((row, column)) for column in ends] for row in ends],
        "slowest": words(min(rates, key=rates.__getitem__), ","),
        "typical": amount(typical, "B/s"),
        "note": note,
    }
