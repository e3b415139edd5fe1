"""Small XML files as trees of tags with line numbers; whatever could make a small file large is refused.

    <system version="1">           Tag("system", {"version": "1"}, line 1, [
      <cpu numaid="0"/>              Tag("cpu", {"numaid": "0"}, line 2)])
    </system>

A document type may define entities that grow without bound, and read files of this machine: a text that
holds one is not even given to the parser. Text between tags and comments are left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

MOST_CHARACTERS = 1024 * 1024
MOST_TAGS = 20_000
DEEPEST = 64

_FORBIDDEN = re.compile(r"<!\s*(?:DOCTYPE|ENTITY)", re.IGNORECASE)


class XmlError(Exception):
    """Why the text is not read; ``line`` counts from 1."""

    def __init__(self, reason: str, line: int) -> None:
        self.reason = reason
        self.line = line
        super().__init__(f"line {line}: {reason}")


@dataclass
class Tag:
    """One element."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list["Tag"] = field(default_factory=list)

    def named(self, *names: str) -> Iterator["Tag"]:
        """The children of these names, in order."""
        return (child for child in self.children if child.name in names)

    def get(self, name: str) -> str:
        """An attribute, "" where it is missing."""
        return self.attributes.get(name, "").strip()


def parse_xml(text: str, first_line: int = 1) -> Tag:
    """The root of a text that begins in ``first_line``. Raises XmlError."""
    forbidden = _FORBIDDEN.search(text)
    if forbidden:
        line = first_line + text.count("\n", 0, forbidden.start())
        raise XmlError("a document type or entity stands here: such a file is not read", line)
    if len(text) > MOST_CHARACTERS:
        raise XmlError(f"the file has more than {MOST_CHARACTERS // 1024} KiB", first_line)
    builder = _Builder(first_line)
    try:
        builder.parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise XmlError(f"this is no XML: {expat.ErrorString(error.code)}", first_line + error.lineno - 1) from None
    return builder.root


class _Builder:
    """Collects what the parser reports."""

    def __init__(self, first_line: int) -> None:
        self._before = first_line - 1
        self._open: list[Tag] = []
        self._count = 0
        self._root: Tag | None = None
        self.parser = expat.ParserCreate("utf-8")  # whatever the text itself says of its encoding
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end

    @property
    def root(self) -> Tag:
        """The outermost tag: a text that was parsed to its end has one."""
        assert self._root is not None
        return self._root

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        tag = Tag(name, attributes, self._before + self.parser.CurrentLineNumber)
        self._count += 1
        if self._count > MOST_TAGS or len(self._open) >= DEEPEST:
            raise XmlError("the file has more tags, or deeper ones, than any machine needs", tag.line)
        if self._open:
            self._open[-1].children.append(tag)
        else:
            self._root = tag
        self._open.append(tag)

    def _end(self, _name: str) -> None:
        self._open.pop()
