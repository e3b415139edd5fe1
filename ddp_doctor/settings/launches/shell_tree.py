r"""Parse a shell script into a tree of commands without running it.

    A=(x "$Y"); f() { srun torchrun "${A[@]}"; }     assignments, functions
    for h in a b; do ssh $h f & done                 blocks
    cat > run.sh <<'END' … END                       here-documents

The tree contains only what affects a launch: words with their expansions, blocks, pipes and redirections. A line with
a quote or bracket that is never closed is skipped, and the rest is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

#: The kind of a piece of a word; ``array`` is the words in A=(…).
Kind = Literal["text", "variable", "command", "sum", "array"]


@dataclass(frozen=True)
class Piece:
    """A part of a word: literal text or an expansion."""

    kind: Kind
    text: str
    quoted: bool = False
    words: tuple[Word, ...] = ()  # the words of an array


Word: TypeAlias = tuple[Piece, ...]


@dataclass
class Call:
    """A command: its words, and the operator before it."""

    words: list[Word]
    line: int
    before: str = ""  # ``|``, ``&&``, ``||`` or nothing
    document: str | None = None  # the text of its here-document
    is_literal: bool = False  # nothing in the here-document is expanded
    output: Word | None = None  # the file after ``>``
    source: Word | None = None  # the word after ``<`` or ``<<<``
    is_broken: bool = False  # it contains an unclosed quote
    in_background: bool = False  # ``&`` follows it


@dataclass
class Block:
    """A group of commands that may run never, once or several times."""

    kind: Literal["if", "loop", "group", "function"]
    line: int
    before: str = ""
    head: list[Word] = field(default_factory=list)  # the words of ``for NAME in …``
    name: str = ""  # the name of a function
    bodies: list[list[Node]] = field(default_factory=list)  # several for an ``if`` or ``case``
    in_background: bool = False  # ``&`` follows it


Node: TypeAlias = "Call | Block"

_TEXT = re.compile(r"[^\s'\"\\$`;&|()<>]+")
_IN_DOUBLE = re.compile(r"[^\"\\$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_SIGN = re.compile(r"\n|;;&?|;&|;|&&|\|\||\|&|\||&(?!>)|\(|\)")
_REDIRECTION = re.compile(r"(?:[0-9]*|&)(?:<<<|<<-?|>>|>\||>&|<&|<>|>|<)(?!\()")
_BLANK = re.compile(r"(?:[ \t\r]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_TEST = re.compile(r"\[\[(?=\s).*?(?<=\s)\]\]", re.DOTALL)
_ANSI = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ENDS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
#: A keyword ends before one of these characters, as in ``$(case $x in a) b ;; esac)``.
_END_OF_WORD = r"(?=[\s;&|()<>]|$)"
_DEEPEST = 40
#: Maximum number of unclosed quotes; after that, the rest is not read.
_MOST_FAULTS = 20


class _Open(Exception):
    pass


def _put_into_background(nodes: Sequence[Node]) -> None:
    """Mark the last command, with the others of its pipe or its list of ``&&`` and ``||``."""
    for node in reversed(nodes):
        node.in_background = True
        if not node.before:
            return


class Script:
    """The nodes of a text, and the lines that were not read, each with the reason."""

    def __init__(self, text: str, line: int = 1) -> None:
        self._text, self._at, self._line = text, 0, line
        self._first, self._counted = line, 0
        self._waiting: list[tuple[Call, str, bool]] = []  # here-documents that start after the current line
        self._is_broken = False
        self._deep = 0
        self.unread: list[tuple[int, str]] = []
        self.nodes = self._nodes(())
        while self._at < len(text):  # a closing word without a block
            self._at += 1
            self.nodes += self._nodes(())

    # --- blocks ---

    def _nodes(self, ends: tuple[str, ...]) -> list[Node]:
        found: list[Node] = []
        before = ""
        self._deep += 1
        while self._at < len(self._text):
            self._blanks()
            start = self._at
            sign = "" if self._text.startswith("((", start) else self._sign()
            if sign == ")" or (sign.startswith(";;") and ends):
                self._at = start
                break
            if sign == "(":
                found.append(self._group(before, ")"))
                before = ""
                continue
            if sign:
                if sign == "&":
                    _put_into_background(found)
                before = "" if sign in ("\n", ";", "&") and before not in ("&&", "||", "|") else sign
                before = {"|&": "|", "\n": before if before in ("&&", "||", "|") else ""}.get(before, before)
                continue
            if self._at >= len(self._text):
                break
            word = self._keyword()
            if word in ends:
                break
            node = self._block(word, before) if self._deep < _DEEPEST else None
            node = node or self._call(before)
            if node is not None:
                found.append(node)
            before = ""
            if self._at == start:  # a character that a shell would not accept
                self._at += 1
        self._deep -= 1
        return found

    def _keyword(self) -> str:
        found = re.compile(rf"(?:[a-z]+|[{{}}!]){_END_OF_WORD}").match(self._text, self._at)
        return found[0] if found else ""

    def _take(self, word: str) -> bool:
        self._blanks()
        if self._keyword() == word:
            self._at += len(word)
            return True
        return False

    def _block(self, word: str, before: str) -> Node | None:  # noqa: PLR0911 - one for each kind
        line = self._number()
        if word in ("then", "do", "else", "!", "time", "elif"):
            self._at += len(word)
            return Block("group", line, before, bodies=[]) if word in ("!", "time") else None
        if word == "{":
            self._at += 1
            return self._group(before, "}")
        if word == "function" or re.compile(r"[\w:.-]+[ \t]*\([ \t]*\)").match(self._text, self._at):
            return self._function(line)
        if word == "if":
            return self._if(line, before)
        if word == "case":
            return self._case(line, before)
        if word in ("for", "select", "while", "until"):
            self._at += len(word)
            head: list[Word] = []
            if word in ("for", "select"):
                self._blanks()
                if self._text.startswith("((", self._at):
                    head = [(Piece("sum", self._closed_or_line(self._at + 2, "))")),)]
                else:
                    head = self._words_of_line()
            else:
                self._nodes(("do",))
            while self._sign() in ("\n", ";") and self._at < len(self._text):
                self._blanks()
            self._take("do")
            body = self._nodes(("done",))
            self._take("done")
            return Block("loop", line, before, head, bodies=[body])
        return None

    def _group(self, before: str, end: str) -> Block:
        line = self._number()
        body = self._nodes(("}",) if end == "}" else ())
        self._blanks()
        if self._text[self._at : self._at + 1] == end:
            self._at += 1
        return Block("group", line, before, bodies=[body])

    def _function(self, line: int) -> Node:
        found = re.compile(r"(?:function[ \t]+)?([\w:.-]+)[ \t]*(?:\([ \t]*\))?").match(self._text, self._at)
        self._at = found.end() if found else self._at + 1
        while self._sign() == "\n":
            self._blanks()
        self._blanks()
        is_group = self._text[self._at : self._at + 1] in ("{", "(")
        body: list[Node] = []
        if is_group:
            end = "}" if self._text[self._at] == "{" else ")"
            self._at += 1
            body = self._group("", end).bodies[0]
        return Block("function", line, name=found[1] if found else "", bodies=[body])

    def _if(self, line: int, before: str) -> Node:
        block = Block("if", line, before)
        self._at += 2
        while True:
            self._nodes(("then", "fi"))
            self._take("then")
            block.bodies.append(self._nodes(("elif", "else", "fi")))
            if not self._take("elif"):
                break
        block.bodies.append(self._nodes(("fi",)) if self._take("else") else [])
        self._take("fi")
        return block

    def _case(self, line: int, before: str) -> Node:
        block = Block("if", line, before)
        self._at += 4
        self._words_of_line()
        while self._at < len(self._text) and not self._take("esac"):
            end = self._text.find(")", self._at)
            stop = re.compile(rf"\besac{_END_OF_WORD}").search(self._text, self._at + 1)
            if end < 0 or (stop and stop.start() < end):
                self._at = stop.start() if stop else len(self._text)
                continue
            self._at = end + 1
            block.bodies.append(self._nodes(("esac",)))
            if not self._sign().startswith(";;") and self._keyword() != "esac":
                break
            while self._sign() == "\n":
                self._blanks()
        block.bodies.append([])
        return block

    # --- commands ---

    def _number(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at) if self._at > self._counted else 0
        self._counted = max(self._at, self._counted)
        return self._line

    def _blanks(self) -> None:
        while found := _BLANK.match(self._text, self._at) or _COMMENT.match(self._text, self._at):
            self._at = found.end()

    def _sign(self) -> str:
        found = _SIGN.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        if found[0] == "\n":
            self._documents()
        return found[0]

    def _documents(self) -> None:
        """Read the here-documents that start at the current position."""
        for call, end, dashed in self._waiting:
            lines = []
            while self._at < len(self._text):
                stop = self._text.find("\n", self._at)
                stop = len(self._text) if stop < 0 else stop
                line, self._at = self._text[self._at : stop], min(stop + 1, len(self._text))
                if (line.lstrip("\t") if dashed else line).rstrip("\r") == end:
                    break
                lines.append(line.lstrip("\t") if dashed else line)
            else:
                self.unread.append((call.line, f"its here-document has no end {end}"))
            call.document = "\n".join(lines) + "\n"
        self._waiting = []

    def _words_of_line(self) -> list[Word]:
        call = self._call("", to_do=True)
        return call.words if call else []

    def _call(self, before: str, *, to_do: bool = False) -> Call | None:
        call = Call([], self._number(), before)
        self._is_broken = False
        while self._at < len(self._text):
            self._blanks_in_line()
            if test := _TEST.match(self._text, self._at) if not call.words else None:
                self._at = test.end()
                call.words.append((Piece("text", "[["),))
                continue
            if not call.words and self._text.startswith("((", self._at) and not to_do:
                call.words += [(Piece("text", "(("),), (Piece("sum", self._closed_or_line(self._at + 2, "))")),)]
                continue
            if self._redirection(call):
                continue
            if _SIGN.match(self._text, self._at) and not self._text.startswith("(", self._at):
                break
            if to_do and self._keyword() == "do":
                break
            start = self._at
            word = self._word()
            if self._is_broken or self._at == start:
                if self._at == start:
                    self._at += 1
                break
            call.words.append(word)
        call.is_broken = self._is_broken
        return call if call.words or call.is_broken else None

    def _blanks_in_line(self) -> None:
        while found := _BLANK.match(self._text, self._at):
            self._at = found.end()
        if found := _COMMENT.match(self._text, self._at):
            self._at = found.end()

    def _redirection(self, call: Call) -> bool:
        found = _REDIRECTION.match(self._text, self._at)
        if found is None:
            return False
        self._at = found.end()
        self._blanks_in_line()
        is_document = found[0].rstrip("-").endswith("<<") and not found[0].endswith("<<<")
        raw = self._at
        word = self._word()
        if is_document:
            end = "".join(piece.text for piece in word)
            call.is_literal = any(sign in self._text[raw : self._at] for sign in "'\"\\")
            self._waiting.append((call, end, found[0].endswith("-")))
        elif found[0] in (">", ">>", "1>", ">|"):
            call.output = word
        elif found[0] in ("<", "<<<"):
            call.source = word
        return True

    # --- words ---

    def _word(self) -> Word:
        pieces: list[Piece] = []
        start = self._at
        try:
            while self._at < len(self._text) and (piece := self._piece(pieces)) is not None:
                pieces += piece
        except _Open:
            self._is_broken = True
            line = self._line_at(start)
            self.unread.append((line, "a quote or bracket is not closed"))
            end = self._text.find("\n", start)
            self._at = end if end >= 0 and len(self.unread) < _MOST_FAULTS else len(self._text)
            if len(self.unread) == _MOST_FAULTS:
                self.unread.append((line + 1, "the rest of the script"))
        return tuple(pieces)

    def _line_at(self, at: int) -> int:
        return self._line + self._text.count("\n", self._counted, at)

    def _piece(self, before: list[Piece]) -> list[Piece] | None:  # noqa: PLR0911 - one for each kind
        text, at = self._text, self._at
        if found := _TEXT.match(text, at):
            self._at = found.end()
            return [Piece("text", found[0])]
        sign = text[at]
        if sign == "'":
            return [Piece("text", self._closed(at + 1, "'"), quoted=True)]
        if sign == '"':
            self._at += 1
            return self._double()
        if sign == "\\":
            self._at += 2
            return [] if text[at + 1 : at + 2] == "\n" else [Piece("text", text[at + 1 : at + 2], quoted=True)]
        if sign in "$`":
            return [self._expansion(quoted=False)]
        if sign == "(" and before and before[-1].text.endswith("=") and not before[-1].quoted:
            return [self._array()]
        if text.startswith(("<(", ">("), at):
            return [Piece("command", self._closed(at + 2, ")"))]
        return None

    def _double(self) -> list[Piece]:
        pieces: list[Piece] = [Piece("text", "", quoted=True)]
        while True:
            if found := _IN_DOUBLE.match(self._text, self._at):
                self._at = found.end()
                pieces.append(Piece("text", found[0], quoted=True))
            sign = self._text[self._at : self._at + 1]
            if not sign:
                raise _Open
            if sign == '"':
                self._at += 1
                return pieces
            if sign == "\\":
                escaped = self._text[self._at + 1 : self._at + 2]
                self._at += 2
                kept = "" if escaped == "\n" else escaped if escaped in '"\\$`' else f"\\{escaped}"
                pieces.append(Piece("text", kept, quoted=True))
            else:
                pieces.append(self._expansion(quoted=True))

    def _expansion(self, *, quoted: bool) -> Piece:  # noqa: PLR0911 - one for each kind
        text, at = self._text, self._at
        if text[at] == "`":
            return Piece("command", self._closed(at + 1, "`"), quoted)
        if not quoted and (found := _ANSI.match(text, at)):
            self._at = found.end()
            return Piece("text", _ESCAPED.sub(r"\1", found[1]), quoted=True)
        if text.startswith("$((", at):
            with suppress(_Open):  # $((a) && b) is a command in a subshell
                return Piece("sum", self._closed(at + 3, "))"), quoted)
        if text.startswith("$(", at):
            return Piece("command", self._closed(at + 2, ")"), quoted)
        if text.startswith("${", at):
            return Piece("variable", self._closed(at + 2, "}"), quoted)
        if found := _NAME.match(text, at + 1):
            self._at = found.end()
            return Piece("variable", found[0], quoted)
        self._at += 1
        return Piece("text", "$", quoted)

    def _array(self) -> Piece:
        self._at += 1
        words: list[Word] = []
        while True:
            while found := _BLANK.match(self._text, self._at) or re.compile(r"\n|#[^\n]*").match(self._text, self._at):
                self._at = found.end()
            if self._at >= len(self._text):
                raise _Open
            if self._text[self._at] == ")":
                self._at += 1
                return Piece("array", "", words=tuple(words))
            pieces: list[Piece] = []
            while self._at < len(self._text) and (piece := self._piece(pieces)) is not None:
                pieces += piece
            if not pieces:
                self._at += 1
            words.append(tuple(pieces))

    def _closed(self, at: int, end: str) -> str:
        """Return the text up to its closing sign, and continue after the sign. Raises _Open."""
        stop = self._end(at, end, 0)
        found, self._at = self._text[at:stop], stop + len(end)
        return found

    def _closed_or_line(self, at: int, end: str) -> str:
        try:
            return self._closed(at, end)
        except _Open:
            stop = self._text.find("\n", at)
            found = self._text[at:stop] if stop >= 0 else self._text[at:]
            self._at = stop if stop >= 0 else len(self._text)
            return found

    def _end(self, at: int, end: str, depth: int) -> int:
        if end == "'":
            stop = self._text.find("'", at)
            if stop < 0:
                raise _Open
            return stop
        looks = _LOOKS[end]
        while (found := looks.search(self._text, at)) is not None and depth < _DEEPEST:
            sign = found[0]
            if sign.startswith("\\"):
                at = found.end()
            elif sign == end:
                return found.start()
            elif sign == ")":  # inside a sum
                at = found.end()
            else:
                inner = {"(": ")", "$(": ")", "${": "}", "'": "'", '"': '"', "`": "`"}[sign]
                at = self._end(found.end(), inner, depth + 1) + len(inner)
        raise _Open


_LOOKS = {
    "`": re.compile(r"\\.|`", re.DOTALL),
    '"': re.compile(r"\\.|\$\(|\$\{|`|\"", re.DOTALL),
    ")": re.compile(r"\\.|\$\{|[()'\"`]", re.DOTALL),
    "))": re.compile(r"\\.|\)\)|[()]", re.DOTALL),
    "}": re.compile(r"\\.|\$\(|\$\{|[}'\"`]", re.DOTALL),
}
