"""The bandwidth between ranks or nodes as one grid for the terminal and the page, shaded relative to the typical rate.

Bandwidth from the row to the column, in GB/s:
        0       1       2
0            12.1    12.0
1    12.2          0.31!!
2    12.0  0.29!!
!! less than a third of the typical rate, 12.2 GB/s; ! less than two thirds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median, median_high
from typing import TYPE_CHECKING

from ddp_doctor.knowledge.network.path_quality import JUDGED_MESSAGE_BYTES, best_of_ends, is_judged
from ddp_doctor.model.report import Report
from ddp_doctor.render.canvas import Canvas
from ddp_doctor.render.layout import folded, matrix_lines
from ddp_doctor.render.text import amount, one_line

if TYPE_CHECKING:
    from rich.text import Text

#: With more ends than this a grid is unreadable: then it has nodes instead of ranks.
_MOST_ENDS = 32
#: With up to this many ends a cell has room for its number; on a screen, and in a picture.
_NUMBERS_ON_SCREEN, _NUMBERS_IN_PICTURE = 8, 16
#: Shares of the typical rate at which a cell becomes lighter, and the marks of slower cells without color.
_SHADES = (1 / 3, 2 / 3, 0.9)
_MARKS, _LETTERS, _TRIANGLES = ("!!", "!", "", ""), ("#", "+", "-", "."), ("▼▼", "▼", "", "")
_TITLE, _WITHIN, _ACROSS = "Bandwidth from the row to the column", "within a node", "across nodes"
#: Minimum median; slower grids are shown in MB/s.
_LEAST_IN_GB_PER_S = 1e8

_Pair = tuple[int, int]
_Pairs = Mapping[_Pair, float]

#: Class -> (light, dark).
_COLOURS: Mapping[str, tuple[str, str]] = {
    "ground": ("fill:#ffffff", "fill:#0d1117"),
    "text": ("fill:#1f2328", "fill:#e6edf3"),
    "muted": ("fill:#57606a", "fill:#9198a1"),
    "none": ("fill:none;stroke:#d0d7de", "fill:none;stroke:#3d444d"),
    "shade0": ("fill:#ffb3a8;stroke:#a40e26", "fill:#7a1d22;stroke:#ff9a92"),
    "shade1": ("fill:#ffe0a3;stroke:#d0d7de", "fill:#5c4400;stroke:#3d444d"),
    "shade2": ("fill:#f7f1da;stroke:#d0d7de", "fill:#3b3517;stroke:#3d444d"),
    "shade3": ("fill:#e3ebf5;stroke:#d0d7de", "fill:#1c2836;stroke:#3d444d"),
}


@dataclass(frozen=True)
class HeatMap:
    """A grid of rates in bytes per second; ``values`` are by row and column, ``labels`` by end."""

    title: str
    values: _Pairs
    labels: Mapping[int, str]
    kinds: Mapping[_Pair, str]
    typical: Mapping[str, float]  # by kind; without kinds that are not evaluated
    notes: tuple[str, ...] = ()
    shown: str = ""  # the note on which ends are shown, if not all

    @property
    def of(self) -> tuple[str, float]:
        """The unit of its numbers, and their divisor."""
        return ("GB/s", 1e9) if median(self.values.values()) >= _LEAST_IN_GB_PER_S else ("MB/s", 1e6)

    def share(self, pair: _Pair) -> float:
        """Return the rate as a share of the typical rate of its kind; 1.0 for kinds that are not evaluated."""
        typical = self.typical.get(self.kinds[pair])
        return self.values[pair] / typical if typical else 1.0

    def shade(self, pair: _Pair) -> int:
        """Return 0 for the worst rates compared with the typical rate, up to 3 for normal ones."""
        return sum(self.share(pair) >= least for least in _SHADES)

    def number(self, pair: _Pair) -> str:
        """Return the rate in the map's unit."""
        return f"{self.values[pair] / self.of[1]:.3g}"

    def words(self, pair: _Pair) -> str:
        """Return ``node1 to node3: 11.84 MB/s``."""
        row, column = (self.labels[end] for end in pair)
        name = "rank {}" if row.isdigit() else "{}"
        return f"{name.format(row)} to {name.format(column)}: {amount(self.values[pair], 'B/s')}"

    def sentences(self, third: str, two_thirds: str) -> Iterator[str]:
        """Yield the sentences below the grid, with the marks of this drawing."""
        worst = min(self.values, key=lambda pair: (self.share(pair), self.values[pair]))
        rates = [f"{amount(rate, 'B/s')}{f' {kind}' * (len(self.typical) > 1)}" for kind, rate in self.typical.items()]
        usual = f"the typical rate, {' and '.join(rates)}"
        if rates and self.shade(worst) >= 2:
            yield f"All reach at least two thirds of {usual}."
        elif rates:
            yield f"{third} less than a third of {usual}; {two_thirds} less than two thirds."
        yield f"Slowest{' of its kind' * (len(rates) > 1)}: {self.words(worst)}."
        yield from self.notes


# --- which grids there are ------------------------------------------------------------------------


def heat_maps(report: Report) -> Iterator[HeatMap]:
    """Yield the grid between ranks and the grid between nodes."""
    one_way = _pairs(report, "p2p_one_way", "rank")
    if not one_way:  # an older recording, of exchanges
        one_way = _pairs(report, "p2p_bandwidth", "rank")
        one_way |= {(peer, rank): value for (rank, peer), value in one_way.items()}
    if one_way:
        yield _of_ranks(report, one_way)
    if between_nodes := _pairs(report, "reach_throughput", "node"):
        typical = {_ACROSS: median_high(best_of_ends(between_nodes, int))}
        kinds, title = dict.fromkeys(between_nodes, _ACROSS), f"TCP {_TITLE.lower()}"
        yield _readable(HeatMap(title, between_nodes, _hosts(report, between_nodes), kinds, typical))


def _pairs(report: Report, name: str, end: str) -> dict[_Pair, float]:
    measured = (measurement for measurement in report.measurements if measurement.name == name)
    return {(int(one_way.labels[end]), int(one_way.labels["peer"])): one_way.value for one_way in measured}


def _left_out(report: Report) -> Iterator[str]:
    """Yield notes on pairs that were not measured, and on the loss while other pairs move data."""
    of = {measurement.name: f"{measurement.value:g}" for measurement in report.measurements}
    if left := of.get("p2p_not_measured"):
        yield f"Not measured because time ran out: {left} pair{'s' * (left != '1')}."
    alone, together = (_pairs(report, f"p2p_{name}", "rank") for name in ("alone", "together"))
    if alone and together:
        typical = [amount(median(pairs.values()), "B/s") for pairs in (alone, together)]
        short = (
            f"; {left} pairs were not measured alone because time ran out" if (left := of.get("p2p_not_alone")) else ""
        )
        yield f"Exchanges both ways, median: {typical[0]} alone, {typical[1]} with all pairs of a round at once{short}."


def _of_ranks(report: Report, pairs: _Pairs) -> HeatMap:
    """Return the grid between ranks; with many ranks, the worst pair of ranks per pair of nodes."""
    world, ranks = report.world, {rank for ends in pairs for rank in ends}
    node_of: Callable[[int], int] = world.node_of if world else lambda _: 0
    by_node = len(ranks) > _MOST_ENDS and world is not None and world.nnodes > 1
    values, kinds, by_kind = dict[_Pair, float](), dict[_Pair, str](), dict[str, dict[_Pair, float]]()
    for (rank, peer), value in pairs.items():
        ends = (node_of(rank), node_of(peer)) if by_node else (rank, peer)
        values[ends] = min(value, values.get(ends, value))
        kinds[ends] = _WITHIN if node_of(rank) == node_of(peer) else _ACROSS
        by_kind.setdefault(kinds[ends], {})[rank, peer] = value
    sizes = [int(found.labels.get("bytes", 0)) for found in report.measurements if found.name == "p2p_bandwidth"]
    typical, notes = dict[str, float](), list(_left_out(report))
    for kind, rates in by_kind.items():
        across = kind == _ACROSS
        if world is None or is_judged(world.backend, max(sizes, default=JUDGED_MESSAGE_BYTES), across=across):
            typical[kind] = median_high(best_of_ends(rates, node_of if across else int))
        else:
            why = "small messages measure latency" if across else "processes of one node share cores"
            notes.append(f"Pairs {kind} are not evaluated: {why}.")
    names = _hosts(report, values) if by_node else {rank: str(rank) for rank in ranks}
    which = "worst pair of ranks per pair of nodes" if by_node else "between ranks"
    return _readable(HeatMap(f"{_TITLE}, {which}", values, names, kinds, typical, tuple(notes)))


def _hosts(report: Report, pairs: _Pairs) -> Mapping[int, str]:
    world = report.world
    return {end: world.hostname(end) if world else f"node rank {end}" for pair in pairs for end in pair}


def _readable(heat: HeatMap) -> HeatMap:
    """Return the grid with one-line names in order; with many ends, only the ends with the worst pairs."""
    ends, shown = sorted(heat.labels), ""
    if len(ends) > _MOST_ENDS:
        shown = f"Only the {_MOST_ENDS} of {len(ends)} with the worst pairs are shown."
        worst_first = dict.fromkeys(end for pair in sorted(heat.values, key=heat.share) for end in pair)
        ends = sorted(list(worst_first)[:_MOST_ENDS])
    labels = {end: one_line(heat.labels[end]) for end in ends}
    values = {pair: value for pair, value in heat.values.items() if labels.keys() >= set(pair)}
    return replace(heat, values=values, labels=labels, shown=shown)


# --- in a terminal --------------------------------------------------------------------------------


def lines(heat: HeatMap, width: int | None) -> list[str]:
    """Return the grid in plain ASCII: numbers, or letters if it has many ends, then without its normal rows."""
    ends = list(heat.labels)
    if len(ends) <= _NUMBERS_ON_SCREEN:
        rows = [["", *(heat.labels[end] for end in ends)]]
        rows += [[heat.labels[row], *(_cell(heat, (row, end)) for end in ends)] for row in ends]
        wide = max(len(cell) for cells in rows for cell in cells[1:])
        rows = [[cells[0], *(cell.rjust(wide) for cell in cells[1:])] for cells in rows]
        marks = _MARKS
    else:
        rows = [["", "".join(label[-1:] for label in heat.labels.values())]]
        for row in ends:
            shades = (_LETTERS[heat.shade((row, end))] if (row, end) in heat.values else " " for end in ends)
            rows.append([heat.labels[row], "".join(shades)])
        slow = [row for row in rows if set(row[1]) & set(_LETTERS[:2])]
        rows = [rows[0], *slow] if slow else []
        marks = _LETTERS
    caption = folded(f"{heat.title}, {heat.of[0]}{':' if rows else ''}", width, indent=1)
    sentences = [*heat.sentences(*marks[:2]), *([heat.shown] if rows and heat.shown else [])]
    below = [folded(text, width, indent=1, hang=3) for text in sentences]
    middle = [f" {line}" for line in matrix_lines(rows, width and width - 1)] if rows else []
    return "\n".join([caption, *middle, *below]).split("\n")


def _cell(heat: HeatMap, pair: _Pair) -> str:
    return heat.number(pair) + _MARKS[heat.shade(pair)] if pair in heat.values else ""


def styled(line: str) -> "Text":
    """Return the line with slow values in color; a pipe or NO_COLOR removes it."""
    from rich.text import Text

    text = Text(line)
    text.highlight_regex(r"(?<=\s)[\d.e+-]+!!|#+", "red")
    text.highlight_regex(r"(?<=\s)[\d.e+-]+!(?!!)", "yellow")
    return text


# --- as a picture ---------------------------------------------------------------------------------


def svg(heat: HeatMap) -> str:
    """Return the grid as an <svg> element for light and dark; each cell shows its value under the pointer."""
    canvas = Canvas("ddp-heat-map", _COLOURS)
    width, height = _draw(canvas, heat)
    return canvas.document(width, height, heat.title, " ".join([f"{heat.title}.", *heat.sentences("", "")]))


def _draw(canvas: Canvas, heat: HeatMap) -> tuple[float, float]:
    """Draw the grid and return its width and height."""
    ends, letter = list(heat.labels), 7.0
    has_numbers = len(ends) <= _NUMBERS_IN_PICTURE
    wide, high = (78.0, 28.0) if has_numbers else (22.0, 22.0)
    longest = letter * max(map(len, heat.labels.values()))
    left, is_turned = 28 + longest, longest > wide - 6
    title = f"{heat.title}, {heat.of[0]}"
    canvas.text(16, 24, title, size=16, anchor="start", bold=True)
    first = 44 + (0.75 * longest if is_turned else 14)
    for at, end in enumerate(ends):
        x, y = left + wide * (at + 0.5), first + high * (at + 0.5) + 4
        anchor = "start" if is_turned else "middle"
        canvas.text(x, first - 6, heat.labels[end], "muted", anchor=anchor, turned=-45 if is_turned else 0)
        canvas.text(left - 8, y, heat.labels[end], "muted", anchor="end")
    for pair in ((row, column) for row in ends for column in ends):
        x, y = left + wide * ends.index(pair[1]), first + high * ends.index(pair[0])
        if pair not in heat.values:
            canvas.rect(x + 1, y + 1, wide - 2, high - 2, "none", radius=3)
            continue
        shade = heat.shade(pair)
        with canvas.group(heat.words(pair)):
            canvas.rect(x + 1, y + 1, wide - 2, high - 2, f"shade{shade}", radius=3)
            text = f"{_TRIANGLES[shade]} {heat.number(pair)}" if has_numbers else _TRIANGLES[shade]
            canvas.text(x + wide / 2, y + high / 2 + 4, text.strip(), size=12 if has_numbers else 9, bold=shade == 0)
    bottom = first + high * len(ends) + 8
    sentences = [*heat.sentences(*_TRIANGLES[:2]), *filter(None, [heat.shown])]
    for at, text in enumerate(sentences):
        canvas.text(16, bottom + 18 * (at + 1), text, "muted", anchor="start")
    room = 0.75 * longest if is_turned else 0.0
    width = max(left + wide * len(ends) + room + 16, 32 + letter * max(map(len, sentences)), 32 + 9.6 * len(title))
    return width, bottom + 18 * len(sentences) + 24
