"""Text for a terminal: what a recording, a child process or a file name contains is shown as text and never obeyed.

``"GPU 3\\x1b]52;c;...\\x07 lost"`` would write to the reader's clipboard; it becomes ``"GPU 3?]52;c;...? lost"``.
"""

import re

#: C0 but tab and newline, DEL, C1, what hides or turns text around (zero width, right to left), and the
#: lone surrogates that no stream can encode.
_NOT_TEXT = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def plain(text: str) -> str:
    """``text`` with a question mark for each character that a terminal would obey; lines and tabs stay."""
    return _NOT_TEXT.sub("?", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """``text`` in plain words on one line."""
    return plain(" ".join(text.split()))
