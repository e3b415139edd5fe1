"""A reader for the subset of YAML in manifests and launchers' configurations. It keeps line numbers.

    spec: {replicas: 2}                 maps and lists, in blocks and in braces
    command: &c ["bash", "-c", "…"]     anchors, aliases and ``<<``
    args:
    - |                                 block scalars, quoted and plain scalars over several lines
      torchrun train.py
    ---                                 several documents

A line that cannot be parsed, such as a loop of a template, is skipped and listed. Tags are dropped, and every scalar
stays text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

_KEY = re.compile(
    r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s\[\]{},#&*!|>'"%@`?][^#\n]*?))[ \t]*:(?:[ \t]+(.*))?$""", re.DOTALL
)
_BEGINS = re.compile(r"(?:(?:&(?P<anchor>[\w.-]+)|!\S*)(?:[ \t]+|$))*")
_BLOCK = re.compile(r"([|>])[0-9]?[+-]?[0-9]?[ \t]*(?:#.*)?$")
_COMMENT = re.compile(r"(?:^|[ \t])#.*$")
_PLAIN_IN_FLOW = re.compile(r"(?:[^,\[\]{}:#\n]|:(?![ \t\n,\]}])|(?<![ \t])#)+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\n": ""}
_DEEPEST = 60
_ENDS = {"[": "]", "{": "}", '"': '"', "'": "'"}
#: Maximum number of lines of one value in brackets or quotes.
_MOST_LINES = 200
#: Maximum number of lines of a text; further lines are not read.
_LONGEST = 100_000
_FOLD = re.compile(r"[ \t]*\n[ \t]*")


class Scalar(str):
    """A text of a document, with the line where it begins."""

    __slots__ = ("line",)
    line: int

    def __new__(cls, text: str, line: int = 0) -> "Scalar":
        """Return the text with its line."""
        made = super().__new__(cls, text)
        made.line = line
        return made


Node: TypeAlias = "Scalar | list[Node] | dict[str, Node]"


@dataclass(frozen=True)
class _Line:
    number: int
    indent: int
    text: str  # without the indent


class _Unreadable(Exception):
    pass


@dataclass
class Documents:
    """The documents of a text, and the numbers of the lines that were not understood."""

    read: list[Node] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)


def read_yaml(lines: Sequence[str]) -> Documents:
    """Return the documents of these lines. Never raises: lines that are not understood are listed."""
    found = Documents(unread=[_LONGEST + 1] if len(lines) > _LONGEST else [])
    part: list[_Line] = []
    for number, raw in enumerate([*lines[:_LONGEST], "---"], 1):
        line = raw.expandtabs(2).rstrip()
        if line in ("...", "---") or line.startswith("--- "):
            if any(each.text and not each.text.startswith("#") for each in part):
                reader = _Reader(part, found.unread)
                found.read.append(reader.document())
            part = []
        else:
            text = line.lstrip(" ")
            part.append(_Line(number, len(line) - len(text), text))
    return found


class _Reader:
    """A reader of one document, line by line."""

    def __init__(self, lines: list[_Line], unread: list[int]) -> None:
        self._lines, self._at, self._unread = lines, 0, unread
        self._anchors: dict[str, Node] = {}

    def document(self) -> Node:
        found = self._block(0, 0)
        while (line := self._peek()) is not None:  # it is further left than the previous lines
            self._unread.append(line.number)
            self._at += 1
        return found

    def _peek(self) -> _Line | None:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.text and not line.text.startswith(("#", "%")):
                return line
            self._at += 1
        return None

    def _block(self, least: int, depth: int) -> Node:
        line = self._peek()
        if line is None or line.indent < least or depth > _DEEPEST:
            return Scalar("", line.number if line else 0)
        if line.text == "-" or line.text.startswith("- "):
            return self._list(line.indent, depth)
        if _KEY.match(line.text):
            return self._map(line.indent, depth)
        self._at += 1
        return self._value(line.text, line, line.indent - 1, depth)

    def _list(self, indent: int, depth: int) -> Node:
        found: list[Node] = []
        while (line := self._peek()) is not None and line.indent >= indent:
            is_item = line.text == "-" or line.text.startswith("- ")
            if line.indent > indent or not is_item:
                if line.indent == indent:
                    break
                self._skip(line)
                continue
            rest = line.text[1:].lstrip(" ")
            inner = line.indent + len(line.text) - len(rest)
            begins = _BEGINS.match(rest)
            after = rest[begins.end() :] if begins else rest
            if rest and (_KEY.match(after) or after.startswith("- ")) and not after.startswith(("{", "[")):
                self._lines[self._at] = _Line(line.number, inner, after)
                item = self._block(inner, depth + 1)
                found.append(self._kept(begins["anchor"] if begins else None, item))
            else:
                self._at += 1
                found.append(self._value(rest, line, indent, depth))
        return found

    def _map(self, indent: int, depth: int) -> Node:
        found: dict[str, Node] = {}
        while (line := self._peek()) is not None and line.indent >= indent:
            key = _KEY.match(line.text) if line.indent == indent else None
            if key is None:
                if line.indent == indent and (line.text == "-" or line.text.startswith("- ")):
                    break
                self._skip(line)
                continue
            self._at += 1
            name = next(group for group in key.groups()[:3] if group is not None)
            value = self._value(key[4] or "", line, indent, depth)
            if name == "<<" and isinstance(value, dict):
                found = {**value, **found}
            else:
                found[name] = value
        return found

    def _skip(self, line: _Line) -> None:
        self._unread.append(line.number)
        self._at += 1

    def _kept(self, anchor: str | None, value: Node) -> Node:
        if anchor:
            self._anchors[anchor] = value
        return value

    def _value(self, text: str, line: _Line, indent: int, depth: int) -> Node:
        """Return the value that begins in the rest of a line whose key or dash is at ``indent``."""
        begins = _BEGINS.match(text)
        anchor, text = (begins["anchor"], text[begins.end() :]) if begins else (None, text)
        if block := _BLOCK.match(text):
            return self._kept(anchor, self._block_scalar(block[1], line, indent))
        if text.startswith("*"):
            return self._anchors.get(text[1:].split(" ")[0], Scalar("", line.number))
        if text[:1] in ("[", "{", '"', "'"):
            return self._kept(anchor, self._in_brackets(text, line))
        text = _COMMENT.sub("", text).strip()
        if not text:
            below = self._peek()
            is_list = below is not None and below.indent == indent and (below.text + " ").startswith("- ")
            return self._kept(anchor, self._block(indent if is_list else indent + 1, depth + 1))
        words = [text]
        while (more := self._peek()) is not None and more.indent > indent and not _KEY.match(more.text):
            words.append(_COMMENT.sub("", more.text).strip())
            self._at += 1
        return self._kept(anchor, Scalar(" ".join(words), line.number))

    def _block_scalar(self, style: str, line: _Line, indent: int) -> Scalar:
        taken: list[_Line] = []
        while self._at < len(self._lines) and (not self._lines[self._at].text or self._lines[self._at].indent > indent):
            taken.append(self._lines[self._at])
            self._at += 1
        least = min((each.indent for each in taken if each.text), default=0)
        texts = [" " * (each.indent - least) + each.text if each.text else "" for each in taken]
        if style == "|":
            return Scalar("\n".join(texts), line.number + 1)
        joined = ""
        for before, text in zip(["", *texts], texts, strict=False):
            joined += text if not joined or not text or text[0] == " " else f"{' ' if before else ''}{text}"
            joined += "" if text else "\n"
        return Scalar(joined, line.number + 1)

    def _in_brackets(self, text: str, line: _Line) -> Node:
        """Return a value in brackets, braces or quotes, which may continue in the next lines."""
        first, end = self._at, _ENDS[text[0]]
        while True:
            try:
                return _flow(text, 0, line.number, 0)[0]
            except _Unreadable:
                break
            except IndexError:  # it continues in a later line
                more = [line.text for line in self._lines[self._at : first + _MOST_LINES]]
            to = next((number for number, each in enumerate(more, 1) if end in each), 0)
            if not to:
                break
            text = "\n".join([text, *more[:to]])
            self._at += to
        self._at = first
        self._unread.append(line.number)
        return Scalar("", line.number)


def _flow(text: str, at: int, line: int, depth: int) -> tuple[Node, int]:
    """Return the value at this position and the position after it. Raises IndexError if the text ends too early."""
    if depth > _DEEPEST:
        raise _Unreadable
    at = _blank(text, at)
    begins = _BEGINS.match(text, at)
    at = begins.end() if begins else at
    number = line + text.count("\n", 0, at)
    if text[at] == "[":
        items: list[Node] = []
        at = _blank(text, at + 1)
        while text[at] != "]":
            item, at = _flow(text, at, line, depth + 1)
            items.append(item)
            at = _next(text, at, "]")
        return items, at + 1
    if text[at] == "{":
        pairs: dict[str, Node] = {}
        at = _blank(text, at + 1)
        while text[at] != "}":
            key, at = _flow(text, at, line, depth + 1)
            at = _blank(text, at)
            value: Node = Scalar("", number)
            if text[at] == ":":
                at = _blank(text, at + 1)
                if text[at] not in ",}":
                    value, at = _flow(text, at, line, depth + 1)
            pairs[str(key) if isinstance(key, str) else ""] = value
            at = _next(text, at, "}")
        return pairs, at + 1
    if text[at] in "\"'":
        return _quoted(text, at, number)
    plain = _PLAIN_IN_FLOW.match(text, at)
    if plain is None:
        raise _Unreadable
    return Scalar(" ".join(plain[0].split()), number), plain.end()


def _blank(text: str, at: int) -> int:
    while text[at] in " \t\n" or (text[at] == "#" and text[at - 1] in " \t\n"):
        at = text.index("\n", at) if text[at] == "#" and "\n" in text[at:] else at + 1
    return at


def _next(text: str, at: int, end: str) -> int:
    at = _blank(text, at)
    if text[at] == ",":
        return _blank(text, at + 1)
    if text[at] != end:
        raise _Unreadable
    return at


def _quoted(text: str, at: int, line: int) -> tuple[Scalar, int]:
    quote, parts = text[at], []
    at += 1
    while True:
        end = at
        while text[end] not in (quote, "\\" if quote == '"' else quote):
            end += 1
        parts.append(_FOLD.sub(" ", text[at:end]))
        if text[end] == "\\":
            parts.append(_ESCAPES.get(text[end + 1], text[end + 1]))
            at = end + 2
        elif quote == "'" and text[end + 1 : end + 2] == "'":
            parts.append("'")
            at = end + 2
        else:
            return Scalar("".join(parts), line), end + 1
