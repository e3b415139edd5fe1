"""A fleet, or two runs beside each other, for people.

3 of 5000 nodes are not healthy
node     verdict  runs  sick  since
node17   sick       12     4  2026-11-23 10:02  lemon
"""

from collections.abc import Iterator, Sequence

from ddp_doctor.facts.cluster import BaselineFact, HeldAgainst
from ddp_doctor.knowledge.baselines import COMPARABLE, FEWEST_RUNS, loss, noise
from ddp_doctor.model.choices import Verdict
from ddp_doctor.model.fleet import Difference, FleetNode, FleetReport, Outlier, Since
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.layout import Table, folded
from ddp_doctor.render.text import amount, one_line
from ddp_doctor.wording.nodes import hosts, name_list

#: Rows of a table on a screen; the JSON has all.
_SHOWN = 12
_ORDER = (Verdict.SICK, Verdict.UNSURE, Verdict.HEALTHY)


def lines(report: FleetReport, width: int | None, *, each: bool) -> Iterator[str]:
    """Each part with a heading and an empty line above; parts that say nothing are left out."""
    parts = (
        (
            "Nodes to look at",
            _nodes(report.nodes, each=each),
            ("node", "verdict", "runs", "sick", "newest", ""),
        ),
        (
            "Found in the newest runs",
            [
                (
                    each.code,
                    each.severity.value,
                    f"{len(each.nodes)}",
                    f"{name_list(each.nodes)}: {each.title}",
                )
                for each in report.common
            ],
            ("code", "severity", "nodes", "where"),
        ),
        (
            "Slower than nodes with the same hardware",
            [_outlier(each) for each in report.outliers],
            ("node", "measured", "value", "median", "slower"),
        ),
        (
            "Not equal on all nodes",
            [_difference(each) for each in report.differences],
            ("", "usual", "others"),
        ),
        ("Since the fleet report before", _since(report.since), ("", "")),
        ("Files to look at", [("", left_out.why) for left_out in report.left_out], ("", "")),
    )
    for heading, rows, titles in parts:
        yield from _part(heading, rows, titles, width, each=each)


def _part(
    heading: str, rows: Sequence[tuple[str, ...]], titles: tuple[str, ...], width: int | None, *, each: bool
) -> Iterator[str]:
    if not rows:
        return
    shown = [tuple(one_line(cell) for cell in row) for row in (rows if each else rows[:_SHOWN])]
    yield ""
    yield folded(f"{heading}:", width, indent=1)
    if not any(titles):
        yield from (folded(f"{name} {text}".strip(), width, indent=3, hang=2) for name, text in shown)
    else:
        yield from Table(titles, shown, _numbers(titles)).lines(width)
    if (left := len(rows) - len(shown)) > 0:
        yield folded(f"and {left} more (-v shows all)", width, indent=3)


def _numbers(titles: Sequence[str]) -> tuple[int, ...]:
    return tuple(titles.index(name) for name in ("runs", "sick", "nodes") if name in titles)


def _nodes(nodes: Sequence[FleetNode], *, each: bool) -> list[tuple[str, ...]]:
    odd = [
        node for node in nodes if each or node.verdict is not Verdict.HEALTHY or node.lemon or node.flapping
    ]
    odd.sort(key=lambda node: (_ORDER.index(node.verdict), not node.lemon, -node.sick_runs))
    return [
        (
            node.hostname,
            node.verdict.value,
            f"{node.runs}",
            f"{node.sick_runs}",
            node.seen_at.replace("T", " ")[:16],
            ", ".join(
                [
                    *(["sick again and again"] if node.lemon else []),
                    *([f"changed {node.changes} times"] if node.flapping else []),
                ]
            ),
        )
        for node in odd
    ]


def _outlier(outlier: Outlier) -> tuple[str, ...]:
    return (
        outlier.node,
        _words(outlier.name, outlier.labels),
        amount(outlier.value, outlier.unit),
        amount(outlier.median, outlier.unit),
        _slower(outlier.name, outlier.value, outlier.median, outlier.mad),
    )


def _words(name: str, labels: dict[str, str | int | float]) -> str:
    size = f" of {amount(float(labels['bytes']), 'B')}" if "bytes" in labels else ""
    return f"{COMPARABLE[name].words}{size}"


def _slower(name: str, value: float, median: float, mad: float, runs: int = FEWEST_RUNS) -> str:
    lost, usual = loss(name, value, median), noise(name, median, mad)
    said = "not known" if runs < FEWEST_RUNS else "all" if usual >= 1 else f"{100 * usual:.0f} %"
    return f"{100 * abs(lost):.0f} % {'slower' if lost > 0 else 'faster'} (noise: {said})"


def _difference(difference: Difference) -> tuple[str, str, str]:
    usual, *others = difference.values
    said = [f"{other.value or 'not set'} on {name_list(other.nodes)}" for other in others]
    return difference.name, f"{usual.value or 'not set'} ({usual.count})", "; ".join(said)


def _since(since: Since | None) -> list[tuple[str, str]]:
    if since is None:
        return []
    nodes = {
        "fell sick": since.fell_sick,
        "recovered": since.recovered,
        "came": since.came,
        "gone": since.gone,
    }
    found = {"new": since.findings_came, "gone": since.findings_gone}
    return [
        *((f"{what}:", name_list(names)) for what, names in nodes.items() if names),
        *((f"{what}: {each.code}", each.title) for what, some in found.items() for each in some),
    ]


def beside_lines(recording: Recording, width: int | None) -> list[str]:
    """What was measured beside the baseline, the slowest first; nothing where none was given."""
    fact = recording.first(BaselineFact)
    if fact is None:
        return []
    ordered = sorted(fact.compared, key=lambda each: -loss(each.name, each.value, each.median))
    rows = [_beside(each, recording) for each in ordered[:_SHOWN]]
    runs = f"{fact.runs} healthy runs" if fact.runs > 1 else "one run"
    table = Table(("measured", "where", "value", "before", ""), rows).lines(width)
    return [folded(f"Beside {runs} before ({one_line(fact.file)}):", width, indent=1), *table]


def _beside(each: HeldAgainst, recording: Recording) -> tuple[str, ...]:
    return (
        _words(each.name, each.labels),
        one_line(hosts(recording, each.nodes)) if each.nodes else "all",
        amount(each.value, each.unit),
        amount(each.median, each.unit),
        _slower(each.name, each.value, each.median, each.mad, each.runs),
    )
