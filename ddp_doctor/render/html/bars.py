"""Bars of the page, whose parts are in percent of the width."""

#: In percent of the width: a bar is never thinner, and its name fits in one that is wider.
_THINNEST, _FITS_A_LETTER = 0.3, 1.5

Part = dict[str, object]


def bar(name: str, start: float, width: float, words: str, label: str = "") -> Part:
    """Return one part of a bar that begins at ``start``, in percent of the width; its label only if it fits."""
    at = min(max(start, 0.0), 100 - _THINNEST)
    wide = min(max(width, _THINNEST), 100 - at)
    fits = label if wide > _FITS_A_LETTER * len(label) else ""
    return {"name": name, "start": round(at, 2), "width": round(wide, 2), "words": words, "label": fits}
