"""Text for a terminal: foreign text is shown and never obeyed, measured values have the unit of their size.

``"GPU 3\\x1b]52;c;...\\x07 lost"`` would write to the reader's clipboard; it becomes ``"GPU 3?]52;c;...? lost"``.
"""

import re
from collections.abc import Sequence
from textwrap import wrap

#: C0 but tab and newline, DEL, C1, what hides or turns text around (zero width, right to left), the
#: lone surrogates that no stream can encode, and what is no character of Unicode, nor of XML.
_NOT_TEXT = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff\ud800-\udfff]"
)


def plain(text: str) -> str:
    """``text`` with a question mark for each character that a terminal would obey; lines and tabs stay."""
    return _NOT_TEXT.sub("?", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """``text`` in plain words on one line."""
    return plain(" ".join(text.split()))


def fold(text: str, width: int, hang: int = 0) -> str:
    """``text`` with longer lines broken between words; what follows is indented as the line, and ``hang`` more."""
    folded = []
    for line in text.splitlines():
        further = " " * (len(line) - len(line.lstrip()) + hang)
        folded += wrap(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(folded) + "\n"


#: From which value on, what it is divided by, and the unit then; bytes below a MiB are exact lengths.
_SCALES: dict[str, Sequence[tuple[float, float, str]]] = {
    "s": ((0.1, 1, "s"), (1e-3, 1e-3, "ms"), (1e-9, 1e-6, "us")),
    "B/s": ((1e9, 1e9, "GB/s"), (1e6, 1e6, "MB/s"), (1e3, 1e3, "kB/s")),
    "FLOP/s": ((1e12, 1e12, "TFLOP/s"),),
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
