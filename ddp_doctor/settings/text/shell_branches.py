"""Which commands of a script run only sometimes: those in a branch, a loop, a function, or after && and ||.

    if [ -d /x ]; then export A=1; else export A=2; fi      two branches of one block
    case $H in a*) export A=1 ;; b*) export A=2 ;; esac     likewise
    for h in $LIST; do export A=$h; done                    a block that may run no time
    setup() { export A=1; }                                 one that may never be called
    [ -d /x ] && export A=1                                 one for this command alone

Of words that only look like these (a text in a here-document) a command seems to be in a branch that it is not in;
then less is said of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ddp_doctor.facts.node.env_vars import Path

_OPENS = {
    "if": "fi",
    "case": "esac",
    "for": "done",
    "while": "done",
    "until": "done",
    "select": "done",
    "{": "}",
}
_CLOSES = frozenset(_OPENS.values())
_NEXT = frozenset(("else", "elif"))
_GO_ON = frozenset(("then", "do", "!", "time"))
_DEEPEST = 50


@dataclass
class Branches:
    """Where a script has come to."""

    path: Path = ()  # of the command that was seen last
    _open: list[tuple[str, int, int]] = field(default_factory=list)  # the word that closes it, block, branch
    _blocks: int = 0
    _is_header: bool = False  # of a function, whose body comes

    def see(self, words: Sequence[str], before: str, after: str) -> None:
        """One command, maybe of no words, with the signs that stand before and after it."""
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
        """Whether the word is one of the shell's own; a command follows it."""
        if word in _OPENS and len(self._open) < _DEEPEST:
            is_group = word == "{" and not self._is_header  # it runs in any case
            self._blocks += not is_group
            self._open.append((_OPENS[word], 0 if is_group else self._blocks, 0))
        elif word in _NEXT:
            self._next_of("fi")
        elif word in _CLOSES:
            self._close(word)
        return word in _OPENS or word in _NEXT or word in _CLOSES or word in _GO_ON

    def _next_of(self, closing: str) -> None:
        if self._open and self._open[-1][0] == closing:
            _, block, branch = self._open.pop()
            self._open.append((closing, block, branch + 1))

    def _close(self, closing: str) -> None:
        at = max((at for at, (opened, _, _) in enumerate(self._open) if opened == closing), default=None)
        if at is not None:
            del self._open[at:]
