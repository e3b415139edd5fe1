"""Bars for the HTML page: the memory of a rank with each strategy, by use."""

from collections.abc import Iterator

from ddp_doctor.features.model.fit.report import FitEstimate, FitReport
from ddp_doctor.features.model.fit.views import size
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.html.bars import Part, bar


def memory(report: FitReport, _recording: Recording) -> Iterator[Part]:
    """Yield the bars of the strategies, in percent of the largest need, or of the GPU's memory if that is larger."""
    if not report.estimates:
        return
    most = max(report.memory_bytes or 0, *(each.needed_bytes for each in report.estimates), 1)
    seen = {part for each in report.estimates for part, taken in each.parts.items() if taken}
    line = f"; the dashed line is {size(report.memory_bytes)}" if report.memory_bytes else ""
    yield {
        "title": "Memory by part",
        "of": f"a rank's peak and the allocator's reserve{line}",
        **({"mark": round(100 * report.memory_bytes / most, 2)} if report.memory_bytes else {}),
        "legend": [*((part, part) for part in report.estimates[0].parts if part in seen), ("other", "reserve")],
        "bars": [(_strategy(each), [], size(each.needed_bytes), list(_taken(each, most))) for each in report.estimates],
        "lines": [],
        "left": 0,
    }


def _strategy(each: FitEstimate) -> str:
    fits = {True: "✓ ", False: "✗ ", None: ""}[each.fits]
    return f"{fits}{each.strategy}{', checkpointing' if each.checkpointing else ''}"


def _taken(each: FitEstimate, most: int) -> Iterator[Part]:
    start = 0.0
    for part, taken in (*each.parts.items(), ("reserve", each.needed_bytes - each.peak_bytes)):
        width = 100 * taken / most
        if taken:
            name = "other" if part == "reserve" else part
            yield bar(name, start, width, f"{part}: {size(taken)}, {taken / each.needed_bytes:.0%}", part)
        start += width
