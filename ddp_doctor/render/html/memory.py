"""What takes the memory of a rank, as one bar for each strategy, and where the memory of a GPU ends."""

from collections.abc import Iterator

from ddp_doctor.model.report import FitEstimate, FitReport
from ddp_doctor.render.html.steps import Part, bar
from ddp_doctor.views.fit import size


def of_strategies(report: FitReport) -> Part:
    """The bars in percent of the most that is needed, or of the memory where that is more."""
    most = max(report.memory_bytes or 0, *(each.needed_bytes for each in report.estimates), 1)
    seen = {part for each in report.estimates for part, taken in each.parts.items() if taken}
    line = f"; the dashed line is {size(report.memory_bytes)}" if report.memory_bytes else ""
    return {
        "title": "What takes the memory",
        "of": f"the peak of a rank, and the allocator's reserve{line}",
        **({"mark": round(100 * report.memory_bytes / most, 2)} if report.memory_bytes else {}),
        "legend": [*((part, part) for part in report.estimates[0].parts if part in seen), ("other", "reserve")],
        "bars": [(_name(each), [], size(each.needed_bytes), list(_parts(each, most))) for each in report.estimates],
        "lines": [],
        "left": 0,
    }


def _name(each: FitEstimate) -> str:
    fits = {True: "✓ ", False: "✗ ", None: ""}[each.fits]
    return f"{fits}{each.strategy}{', checkpointing' if each.checkpointing else ''}"


def _parts(each: FitEstimate, most: int) -> Iterator[Part]:
    start = 0.0
    for part, taken in (*each.parts.items(), ("reserve", each.needed_bytes - each.peak_bytes)):
        width = 100 * taken / most
        if taken:
            name = "other" if part == "reserve" else part
            yield bar(name, start, width, f"{part}: {size(taken)}, {taken / each.needed_bytes:.0%}", part)
        start += width
