r"""Split shell lines into commands and words, and find conditional commands, without running them.

    export A=1 B="two words"; srun --export=ALL,C=3 \
        python train.py 'x y'   # comment

contains the commands ``export A=1 B=two words`` and ``srun --export=ALL,C=3 python train.py x y``. A word with an
expansion is kept as written, with its dependency: ``eth$N`` depends on ``$N``. ``$((512 * 1024))`` is 524288. A quote
that is not closed is ignored.

Commands in a branch, a loop or a function, or after && and ||, are conditional.

    if [ -d /x ]; then export A=1; else export A=2; fi      two branches of one block
    case $H in a*) export A=1 ;; b*) export A=2 ;; esac     the same
    for h in $LIST; do export A=$h; done                    a block that may never run
    setup() { export A=1; }                                 a block that may never be called
    [ -d /x ] && export A=1                                 a block for this command only

If other words look like these (text in a here-document), a command may seem to be in a branch. The report then
contains less about it.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ddp_doctor.facts.node.env_vars import Path

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
    """A word of a command, without its quotes; ``line`` is 0 for the first line of the text."""

    text: str
    line: int
    depends_on: str | None = None  # the first expansion in it


def commands(text: str) -> Iterator[list[Word]]:
    """The commands of one or more lines, in order."""
    return (command for command, _ in commands_and_signs(text) if command)


def commands_and_signs(text: str) -> Iterator[tuple[list[Word], str]]:
    """Yield each command, possibly without words, and the operators that end it: ``;``, ``&&``, ``)``, a new line."""
    text = _ARITHMETIC.sub(_calculated, text)
    command: list[Word] = []
    parts: list[str] = []  # the text of the current word, which starts in line ``first``
    line, first, depends_on = 0, 0, None
    for piece in _PIECES.finditer(text):
        kind, raw = piece.lastgroup or "", piece.group()
        if kind in ("blank", "end", "comment"):
            if parts:
                command.append(Word("".join(parts), first, depends_on))
                parts, depends_on = [], None
            if kind == "end":
                yield command, raw
                command = []
        else:
            first = first if parts else line
            plain, expansion = _meaning_and_expansion(kind, raw)
            if kind == "plain" and not parts and _HOME.match(raw):
                expansion = "~"  # bash expands it in an assignment
            parts.append(plain)
            depends_on = depends_on or expansion
        line += raw.count("\n")
    if parts:
        command.append(Word("".join(parts), first, depends_on))
    if command:
        yield command, "\n"


_ARITHMETIC = re.compile(r"\$\(\(((?:[ \t+*/%()<>-]|0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19}){1,40})\)\)")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: abs(left) // abs(right) * (1 if left * right >= 0 else -1),
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Pow: operator.pow,
}
#: bash calculates with 64 bits.
_BITS = 63


def _calculated(found: re.Match[str]) -> str:
    """Return the value of an arithmetic expansion of numbers, or the expansion unchanged."""
    try:
        return str(_value(ast.parse(found[1].strip(), mode="eval").body))
    except (SyntaxError, ArithmeticError, ValueError, RecursionError):
        return found[0]


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        result = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        result = -_value(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.LShift | ast.RShift | ast.Pow) and not 0 <= right <= _BITS:
            raise ValueError(node.op)
        result = _OPERATORS[type(node.op)](left, right)
    else:
        raise ValueError(node)
    if abs(result) >> _BITS:
        raise ValueError(result)
    return result


def _meaning_and_expansion(kind: str, raw: str) -> tuple[str, str | None]:
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


_OPENS = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "select": "done", "{": "}"}
_CLOSES = frozenset(_OPENS.values())
_NEXT = frozenset(("else", "elif"))
_GO_ON = frozenset(("then", "do", "!", "time"))
_DEEPEST = 50


@dataclass
class Branches:
    """The branches that a script is in."""

    path: Path = ()  # the branch of the last command
    _open: list[tuple[str, int, int]] = field(default_factory=list)  # the closing word, the block, and the branch
    _blocks: int = 0
    _is_header: bool = False  # the header of a function was read, and its body follows

    def see(self, words: Sequence[str], before: str, after: str) -> None:
        """Process a command, possibly without words, with the operators before and after it."""
        if ";;" in before:
            self._next_of("esac")
        at = 0
        while at < len(words) and self._is_read(words[at]):
            at += 1
        if words:
            self._is_header = "()" in after or words[0] == "function"
            if words[0] == "function" and words[-1] == "{":
                self._is_read("{")
        self.path = tuple((block, branch) for _, block, branch in self._open if block)
        if before.rstrip("\n").endswith(("&&", "||")):
            self._blocks += 1
            self.path += ((self._blocks, 0),)

    def _is_read(self, word: str) -> bool:
        """Process a shell keyword that precedes a command; return True if the word is one."""
        if word in _OPENS and len(self._open) < _DEEPEST:
            is_group = word == "{" and not self._is_header  # it always runs
            self._blocks += not is_group
            self._open.append((_OPENS[word], 0 if is_group else self._blocks, 0))
        elif word in _NEXT:
            self._next_of("fi")
        elif word in _CLOSES:
            at = max((at for at, (closing, _, _) in enumerate(self._open) if closing == word), default=None)
            del self._open[len(self._open) if at is None else at :]
        return word in _OPENS or word in _NEXT or word in _CLOSES or word in _GO_ON

    def _next_of(self, closing: str) -> None:
        if self._open and self._open[-1][0] == closing:
            _, block, branch = self._open.pop()
            self._open.append((closing, block, branch + 1))
