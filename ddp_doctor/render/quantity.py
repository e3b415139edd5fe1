"""Measured values for people: in the unit of their size, where the report holds them in base units."""

from collections.abc import Sequence

#: From which value on, what it is divided by, and the unit then; bytes below a MiB are exact lengths.
_SCALES: dict[str, Sequence[tuple[float, float, str]]] = {
    "s": ((0.1, 1, "s"), (1e-3, 1e-3, "ms"), (1e-9, 1e-6, "us")),
    "B/s": ((1e9, 1e9, "GB/s"), (1e6, 1e6, "MB/s"), (1e3, 1e3, "kB/s")),
    "B": ((2**30, 2**30, "GiB"), (2**20, 2**20, "MiB")),
}


def amount(value: float, unit: str | None) -> str:
    """``50.29 ms`` for 0.050292 s, ``11.84 MB/s``, ``64 MiB``, ``131072 B``, ``3 ranks``, ``0.5``."""
    for least, divisor, name in _SCALES.get(unit or "", ()):
        if abs(value) >= least:
            return f"{_digits(value / divisor, '.4g')} {name}"
    number = _digits(value, "g")
    return f"{number} {unit}" if unit else number


def _digits(value: float, few: str) -> str:
    """All digits before the point, and of what is behind it only a few digits in all."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:{few}}"
