r"""Pasted text without the terminal's decoration, and text that JSON and every stream can encode.

``"\x1b[4mGPU0\tGPU1\x1b[0m\r\n"`` becomes ``"GPU0\tGPU1"``. Pasted text also has lost or replaced escape bytes
(``"\ufffd[4m"``), window titles, backspaces, a byte-order mark, lone carriage returns, non-breaking spaces, and HTML
entities.
"""

import html
import re

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # window title and similar
    r"|[\x1b\ufffd]\[[0-?]*[ -/]*[@-~]"  # color, underline, erase; even if the escape byte is lost
    r"|\x1b[@-_]"
)
_BACKSPACE = re.compile(r"[^\x08\n]\x08")
_TAGS = re.compile(r"</?(?:br|pre|code|div|span|p|tt)\b[^<>\n]{0,200}>", re.IGNORECASE)
_LINE_END = re.compile(r"\r{0,3}\n|\r")
_ANSI = re.compile(r"\x1b\][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)?|[\x1b\x9b]\[?[0-?]*[ -/]*[@-~]")
#: Controls except the tab, and the marks that change the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]")


def plain_lines(text: str) -> list[str]:
    """Return the lines of ``text`` without decoration. Their number stays the same, so line numbers remain valid."""
    text = _ESCAPES.sub("", text.removeprefix("\ufeff"))
    if "\x08" in text:
        text = _BACKSPACE.sub("", text)
    if "&nbsp;" in text or "<br" in text:
        text = html.unescape(_TAGS.sub("", text))
    return _LINE_END.split(text.replace("\xa0", " "))


def as_utf8(text: str) -> str:
    r"""Return ``text`` with surrogates written out: ``eth\udcff`` as nine characters.

    Python reads bytes that are not UTF-8, in variables and file names, as surrogates: ``b"eth\xff"`` is
    ``"eth\udcff"``, and a script may write ``"\ud800"``. No encoder takes them.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain(text: str) -> str:
    """Return text without colors, controls and marks that change its direction."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub("", _ANSI.sub("", text))
