"""Text for a terminal: foreign control characters are replaced, and measured values get a unit that fits their size.

``"GPU 3\\x1b]52;c;...\\x07 lost"`` would write to the reader's clipboard; it becomes ``"GPU 3?]52;c;...? lost"``.
"""

import re
from collections.abc import Sequence
from textwrap import wrap

#: C0 except tab and newline, DEL, C1, characters that hide or reverse text (zero width, right to left), lone surrogates
#: that no stream can encode, and code points that are not characters of Unicode or XML.
_NOT_TEXT = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Return ``text`` with a question mark for each control character; lines and tabs stay."""
    return _NOT_TEXT.sub("?", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return ``text`` in plain words on one line."""
    return plain(" ".join(text.split()))


def fold(text: str, width: int, hang: int = 0) -> str:
    """Return ``text`` with long lines broken between words; continuation lines have the line's indent plus ``hang``."""
    folded = []
    for line in text.splitlines():
        further = " " * (len(line) - len(line.lstrip()) + hang)
        folded += wrap(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(folded) + "\n"


#: Minimum value, divisor and unit; bytes below a MiB are exact lengths.
_SCALES: dict[str, Sequence[tuple[float, float, str]]] = {
    "s": ((0.1, 1, "s"), (1e-3, 1e-3, "ms"), (1e-9, 1e-6, "us")),
    "B/s": ((1e9, 1e9, "GB/s"), (1e6, 1e6, "MB/s"), (1e3, 1e3, "kB/s")),
    "FLOP/s": ((1e12, 1e12, "TFLOP/s"),),
    "B": ((2**30, 2**30, "GiB"), (2**20, 2**20, "MiB")),
}


def amount(value: float, unit: str | None) -> str:
    """Return ``50.29 ms`` for 0.050292 s, ``11.84 MB/s``, ``64 MiB``, ``131072 B``, ``3 ranks``, ``0.5``."""
    for least, divisor, name in _SCALES.get(unit or "", ()):
        if abs(value) >= least:
            return f"{_digits(value / divisor, '.4g')} {name}"
    number = _digits(value, "g")
    return f"{number} {unit}" if unit else number


def _digits(value: float, few: str) -> str:
    """Return all digits before the decimal point, and decimals only up to a few digits in total."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:{few}}"
