r"""Takes the terminal, the browser and the ticket system out of pasted text; keeps lines and tabs.

``"\x1b[4mGPU0\tGPU1\x1b[0m\r\n"`` becomes ``"GPU0\tGPU1"``. Also met in the wild: the escape byte
lost or replaced (``"\ufffd[4m"``), a window title, backspaces, a byte-order mark, lone carriage
returns, non-breaking spaces, and HTML entities.
"""

import html
import re

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # window title and the like
    r"|[\x1b\ufffd]\[[0-?]*[ -/]*[@-~]"  # colour, underline, erase; also with the escape byte lost
    r"|\x1b[@-_]"
)
_BACKSPACE = re.compile(r"[^\x08\n]\x08")
_TAGS = re.compile(r"</?(?:br|pre|code|div|span|p|tt)\b[^<>\n]{0,200}>", re.IGNORECASE)
_LINE_END = re.compile(r"\r{0,3}\n|\r")


def plain_lines(text: str) -> list[str]:
    """The lines of ``text`` without decoration; as many as before, so that line numbers hold."""
    text = _ESCAPES.sub("", text.removeprefix("\ufeff"))
    if "\x08" in text:
        text = _BACKSPACE.sub("", text)
    if "&nbsp;" in text or "<br" in text:
        text = html.unescape(_TAGS.sub("", text))
    return _LINE_END.split(text.replace("\xa0", " "))
