"""A fleet, or a run compared with healthy runs, for people.

Nodes that need attention:
node    verdict    runs  unhealthy  newest
node17  unhealthy    12          4  2026-11-23 10:02  repeatedly unhealthy
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddp_doctor.facts.cluster import BaselineFact, RunDifferencesFact, TracedSide, TracesFact
from ddp_doctor.knowledge.baselines import FEWEST_RUNS, in_words, loss, noise
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import WORST_FIRST, Severity, Verdict
from ddp_doctor.model.fleet import CommonFinding, Difference, FleetReport, Outlier, Since
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.layout import Table
from ddp_doctor.render.text import amount, one_line
from ddp_doctor.views.compared_traces import changes, scale
from ddp_doctor.wording.nodes import and_more, hosts, name_list

#: Rows of a table on a screen; the JSON has all.
_SHOWN = 12
_NUMBERS = ("runs", "unhealthy", "nodes", "change", "noise")
Rows = Sequence[tuple[str, ...]]


def parts_in_lines(report: FleetReport, width: int | None, *, each: bool) -> Iterator[list[str]]:
    """Yield the lines of each part, on a screen its first rows only."""
    for part in parts(report, each=each):
        shown = part if each else replace(part, rows=part.rows[:_SHOWN], notes=part.notes[:_SHOWN])
        left = max(len(part.rows), len(part.notes)) - _SHOWN
        yield [*shown.lines(width), *([f"   and {left} more (-v shows all)"] if left > 0 and not each else [])]


def parts(report: FleetReport, *, each: bool) -> Iterator[Table]:
    """Yield the non-empty tables of the fleet. ``each`` includes healthy nodes."""
    tables: tuple[tuple[str, Rows, tuple[str, ...]], ...] = (
        (
            "Findings in the newest runs",
            [_common(common) for common in report.common],
            ("code", "severity", "nodes", ""),
        ),
        (
            "Nodes that need attention",
            _nodes(report, each=each),
            ("node", "verdict", "runs", "unhealthy", "newest", ""),
        ),
        (
            "Slower than nodes with the same hardware",
            [*_outliers(report.outliers, each=each)],
            ("node", "measured", "value", "median", "change"),
        ),
        ("Differences between nodes", [*map(_difference, report.differences)], ("", "most nodes", "others")),
    )
    for caption, rows, titles in tables:
        if rows:
            yield _table(rows, titles, caption)
    for caption, lines in (
        ("Changes since the previous fleet report", _since(report.since)),
        ("Files that need attention", [left_out.why for left_out in report.left_out]),
    ):
        if lines:
            yield Table(caption=caption, notes=tuple(map(one_line, lines)))


def _table(rows: Rows, titles: tuple[str, ...], caption: str, notes: tuple[str, ...] = ()) -> Table:
    shown = [tuple(one_line(cell) for cell in row) for row in rows]
    return Table(titles, shown, [titles.index(name) for name in _NUMBERS if name in titles], caption, notes)


def _nodes(report: FleetReport, *, each: bool) -> Rows:
    codes = {found.fingerprint: found.code for found in report.findings if found.severity is Severity.ERROR}
    shown = [
        node for node in report.nodes if each or node.verdict is not Verdict.HEALTHY or node.lemon or node.flapping
    ]
    shown.sort(key=lambda node: (WORST_FIRST.index(node.verdict), not node.lemon, -node.unhealthy_runs))
    rows = []
    for node in shown:
        seen, counts = node.seen_at.replace("T", " ")[:16], (f"{node.runs}", f"{node.unhealthy_runs}")
        reasons = name_list([*dict.fromkeys(codes[found] for found in node.findings if found in codes)])
        changes = f"{node.changes} changes" if node.flapping else ""
        remarks = reasons, "repeatedly unhealthy" if node.lemon else "", changes
        rows.append((node.hostname, node.verdict.value, *counts, seen, ", ".join(filter(None, remarks))))
    return rows


def _common(common: CommonFinding) -> tuple[str, ...]:
    where = "" if len(common.nodes) == 1 else f"{name_list(common.nodes)}; for example: "
    return common.code, common.severity.value, f"{len(common.nodes)}", f"{where}{common.title}"


def _outliers(outliers: Sequence[Outlier], *, each: bool) -> Iterator[tuple[str, ...]]:
    """Yield each node's slowest value; on a screen with the number of its other slow values."""
    for some in grouped((outlier.node, outlier) for outlier in outliers).values():
        more = "" if each else and_more(len(some) - 1)
        for outlier in some if each else some[:1]:
            yield (
                outlier.node,
                f"{in_words(outlier.name, outlier.labels)}{more}",
                amount(outlier.value, outlier.unit),
                amount(outlier.median, outlier.unit),
                _change(outlier.name, outlier.value, outlier.median),
            )


def _change(name: str, value: float, median: float) -> str:
    """Return the change in percent, negative if slower."""
    return f"{round(-100 * loss(name, value, median)):+d}%"


def _difference(difference: Difference) -> tuple[str, ...]:
    usual, *others = difference.values
    elsewhere = [f"{other.value or 'not set'} on {name_list(other.nodes)}" for other in others]
    return difference.name, f"{usual.value or 'not set'} ({usual.count})", "; ".join(elsewhere)


def _since(since: Since | None) -> list[str]:
    if since is None:
        return []
    nodes = {"became unhealthy": since.became_unhealthy, "recovered": since.recovered}
    nodes |= {"added": since.came, "gone": since.gone}
    found = {"new": since.findings_came, "gone": since.findings_gone}
    return [
        *(f"{what}: {name_list(names)}" for what, names in nodes.items() if names),
        *(f"{what}: {named.code} {named.title}" for what, some in found.items() for named in some),
    ]


def beside(recording: Recording, *, each: bool) -> Table | None:
    """Return what was measured compared with a baseline, the slowest first, and what was not compared; or None.

    Without ``each`` the first rows of it.
    """
    if (traces := recording.first(TracesFact)) is not None:
        return _traces(traces)
    fact, others = recording.first(BaselineFact), recording.first(RunDifferencesFact)
    left_out = tuple(map(one_line, others.left_out)) if others else ()
    if fact is None:
        if others is None or not left_out:
            return None
        return Table(caption=f"Not compared with {one_line(others.file)}:", notes=left_out)
    rows = []
    for held in sorted(fact.compared, key=lambda held: -loss(held.name, held.value, held.median)):
        gpu = "" if held.gpu is None else f", GPU {held.gpu}"
        usual = noise(held.name, held.median, held.mad)
        much = "all" if usual >= 1 else f"{100 * usual:.0f}%"  # all: too much to tell
        rows.append(
            (
                in_words(held.name, held.labels),
                f"{hosts(recording, held.nodes)}{gpu}" if held.nodes else "all",
                amount(held.value, held.unit),
                amount(held.median, held.unit),
                _change(held.name, held.value, held.median),
                "?" if held.runs < FEWEST_RUNS else much,
            )
        )
    runs = f"{fact.runs} earlier healthy runs" if fact.runs > 1 else "one earlier run"
    titles = ("measured", "where", "value", "before", "change", "noise")
    shown = rows if each else rows[:_SHOWN]
    return _table(shown, titles, f"Compared with {runs} ({one_line(fact.file)}):", left_out)


def _traces(fact: TracesFact) -> Table:
    """Return the parts of a step, averaged over the ranks, before and now."""
    step = changes(fact)[0].before
    rows = [
        (
            each.part,
            *(f"{value / 1e3:.2f}" for value in (each.before, each.now)),
            f"{each.more / 1e3:+.2f}{' !!' * each.is_seen}",
            f"{each.noise / 1e3:.2f}",
            f"{each.more / step:+.0%}",
        )
        for each in changes(fact)
        if each.before or each.now
    ]
    notes = [f"{name}: {one_line(_of_side(side))}" for name, side in (("before", fact.before), ("now", fact.now))]
    if (by := scale(fact)) != 1.0:
        notes.append(f"the batches differ: the new step is scaled by {by:.2g} to the same number of samples")
    titles = ("one step, mean of all ranks, in ms", "before", "now", "change", "noise", "share of step")
    caption = f"{one_line(fact.now.file)} compared with {one_line(fact.before.file)}:"
    return Table(titles, rows, range(1, 6), caption, tuple(notes))


def _of_side(side: TracedSide) -> str:
    """``2 ranks, 5 steps, 256 samples per rank, NVIDIA H100 80GB HBM3``."""
    samples = f"{side.samples:g} samples per rank" if side.samples else ""
    counts = [f"{count} {what}{'s' * (count != 1)}" for count, what in ((side.ranks, "rank"), (side.steps, "step"))]
    return ", ".join(filter(None, (*counts, samples, *side.gpus, side.problem)))
