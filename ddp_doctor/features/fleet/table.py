"""The tables of a fleet report, for example the nodes that need attention.

node    verdict    runs  unhealthy  newest
node17  unhealthy    12          4  2026-11-23 10:02  repeatedly unhealthy
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddp_doctor.features.fleet.report import CommonFinding, Difference, FleetReport, Outlier, Since
from ddp_doctor.knowledge.baselines import in_words
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import WORST_FIRST, Severity, Verdict
from ddp_doctor.render.compared import SHOWN, Rows, change, table
from ddp_doctor.render.layout import Table
from ddp_doctor.render.text import amount, one_line
from ddp_doctor.wording.nodes import and_more, name_list


def tables(report: FleetReport, _recording: object, *, each: bool) -> Iterator[Table]:
    """Yield the tables for a screen; without ``each``, only the first rows of each table."""
    for part in parts(report, each=each):
        left = max(len(part.rows), len(part.notes)) - SHOWN
        if each or left <= 0:
            yield part
        else:
            notes = (*part.notes[:SHOWN], f"and {left} more (-v shows all)")
            yield replace(part, rows=part.rows[:SHOWN], notes=notes)


def parts(report: FleetReport, *, each: bool) -> Iterator[Table]:
    """Yield the non-empty tables of the fleet. ``each`` includes healthy nodes."""
    of_rows: tuple[tuple[str, Rows, tuple[str, ...]], ...] = (
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
    for caption, rows, titles in of_rows:
        if rows:
            yield table(rows, titles, caption)
    for caption, lines in (
        ("Changes since the previous fleet report", _since(report.since)),
        ("Files that need attention", [left_out.why for left_out in report.left_out]),
    ):
        if lines:
            yield Table(caption=caption, notes=tuple(map(one_line, lines)))


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
                change(outlier.name, outlier.value, outlier.median),
            )


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
