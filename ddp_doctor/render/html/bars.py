"""Bars of the page, whose parts are in percent of the width, and the bars of what takes the memory of a rank."""

from collections.abc import Iterator

from ddp_doctor.model.report import FitEstimate, FitReport
from ddp_doctor.views.fit import size

#: In percent of the width: a bar is never thinner, and its name fits in one that is wider.
_THINNEST, _FITS_A_LETTER = 0.3, 1.5

Part = dict[str, object]


def bar(name: str, start: float, width: float, words: str, label: str = "") -> Part:
    """Return one part of a bar that begins at ``start``, in percent of the width; its label only if it fits."""
    at = min(max(start, 0.0), 100 - _THINNEST)
    wide = min(max(width, _THINNEST), 100 - at)
    fits = label if wide > _FITS_A_LETTER * len(label) else ""
    return {"name": name, "start": round(at, 2), "width": round(wide, 2), "words": words, "label": fits}


def memory(report: FitReport) -> Part:
    """Return each strategy's memory of a rank, in percent of the maximum or of a GPU's memory if that is more."""
    most = max(report.memory_bytes or 0, *(each.needed_bytes for each in report.estimates), 1)
    seen = {part for each in report.estimates for part, taken in each.parts.items() if taken}
    line = f"; the dashed line is {size(report.memory_bytes)}" if report.memory_bytes else ""
    return {
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
