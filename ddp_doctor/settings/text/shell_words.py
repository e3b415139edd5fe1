r"""Lines of shell as commands and words: enough to see what is set and exported, and nothing is run.

    export A=1 B="two words"; srun --export=ALL,C=3 \
        python train.py 'x y'   # comment

gives the commands ``export A=1 B=two words`` and ``srun --export=ALL,C=3 python train.py x y``. A word that holds
an expansion stays as it is written and says what it depends on: ``eth$N`` depends on ``$N``. A quote that is
not closed counts for nothing: the rest of the line is read as if it were not there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_PIECES = re.compile(
    r"""
      (?P<blank>(?:[ \t]|\\\n)+)
    | (?P<end>[;&|()\n]+)
    | (?P<comment>(?<![^\s;&|()])\#[^\n]*)
    | (?P<single>'[^']*')
    | (?P<ansi>\$'(?:[^'\\]|\\.)*')
    | (?P<double>"(?:[^"\\]|\\.)*")
    | (?P<open>\$\((?:[^()\n]|\([^()\n]*\))*\)
        | `[^`\n]*`
        | \$\{(?:[^{}$\n]|\$\{[^{}$\n]*\}|\$(?!\{))*\}
        | \$[A-Za-z0-9_@*\#?!$-]+)
    | (?P<escape>\\.)
    | (?P<plain>[^\s;&|()'"\\$`]+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_EXPANSION = re.compile(r"(?<!\\)(?:\$\([^)]*\)?|\$\{[^}]*\}?|\$[A-Za-z_0-9@*#?!$-]+|`[^`]*`)")
_HOME = re.compile(r"[A-Za-z_]\w*=~(?:/|$)", re.ASCII)
_IN_DOUBLE = re.compile(r'\\(["\\$`])')
_IN_ANSI = re.compile(r"\\(.)", re.DOTALL)
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b"}


@dataclass(frozen=True)
class Word:
    """One word of a command, without its quotes; ``line`` counts from 0 at the beginning of the text."""

    text: str
    line: int
    depends_on: str | None = None  # the first expansion in it


@dataclass
class _Open:
    """The word that is being read."""

    line: int
    parts: list[str] = field(default_factory=list)
    depends_on: str | None = None

    def closed(self) -> Word:
        return Word("".join(self.parts), self.line, self.depends_on)


def commands(text: str) -> Iterator[list[Word]]:
    """The commands of one or more lines, in order."""
    return (command for command, _ in commands_and_signs(text) if command)


def commands_and_signs(text: str) -> Iterator[tuple[list[Word], str]]:
    """Each command, maybe of no words, with the signs that end it: ``;``, ``&&``, ``)``, a new line."""
    command: list[Word] = []
    word: _Open | None = None
    line = 0
    for piece in _PIECES.finditer(text):
        kind, raw = piece.lastgroup or "", piece.group()
        if kind in ("blank", "end", "comment"):
            if word is not None:
                command.append(word.closed())
                word = None
            if kind == "end":
                yield command, raw
                command = []
        else:
            word = word or _Open(line)
            plain, depends_on = _read(kind, raw)
            if kind == "plain" and not word.parts and _HOME.match(raw):
                depends_on = "~"  # bash expands it where an assignment stands
            word.parts.append(plain)
            word.depends_on = word.depends_on or depends_on
        line += raw.count("\n")
    if word is not None:
        command.append(word.closed())
    if command:
        yield command, "\n"


def _read(kind: str, raw: str) -> tuple[str, str | None]:
    """What a piece stands for, and the expansion in it."""
    if kind == "single":
        return raw[1:-1], None
    if kind == "ansi":
        return _IN_ANSI.sub(lambda found: _ANSI.get(found[1], found[1]), raw[2:-1]), None
    if kind == "double":
        inside = raw[1:-1].replace("\\\n", "")
        found = _EXPANSION.search(inside)
        return _IN_DOUBLE.sub(r"\1", inside), found and found.group()
    if kind == "open":
        return raw, raw
    if kind == "escape":
        return raw[1:], None
    return ("", None) if raw in "\"'" else (raw, raw if raw in "$`" else None)
