"""Values that a script computes: text with a token for each unknown part.

``head-7:29500`` is text; ``$HEAD:$((29500 + SLURM_NODEID))`` is two tokens with a colon between. A token has the kind
of its part: equal everywhere, different on each node, random, or unknown. A value can therefore be split, joined and
read as a script like any other text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ddp_doctor.facts.node.env_vars import Argument, ArgumentKind, ArgumentMeaning

#: By priority: the first kind applies to a value with parts of several kinds.
Kind = Literal["random", "node", "given", "any", "same", "default"]
_ORDER: tuple[Kind, ...] = ("random", "node", "given", "any", "same", "default")
#: The depth of a loop's variable: it differs between the loop's commands, whichever shell expands it.
OF_LOOP = 99
#: The depth of a command that starts once, so that no word differs between nodes.
ONCE = 98
_TOKEN = re.compile("\ue000(\\d+)\ue001")
_FOREIGN = re.compile("[\ue000\ue001]")
#: Maximum length of an argument in a report.
_LONGEST_SHOWN = 80


@dataclass(frozen=True)
class Part:
    """An unknown part of a value. ``depth``: the nesting depth of the shell that expanded it."""

    kind: Kind
    text: str
    depth: int = 0
    means: ArgumentMeaning = ""
    fallback: str = ""
    unless: str = ""


class Values:
    """The unknown parts in the values of a file, by their tokens."""

    def __init__(self) -> None:
        self._parts: list[Part] = []

    @staticmethod
    def cleaned(text: str) -> str:
        """Return the text without the characters that tokens are made of."""
        return _FOREIGN.sub("?", text)

    def token(self, part: Part) -> str:
        """Return a token for this part."""
        self._parts.append(part)
        return f"\ue000{len(self._parts) - 1}\ue001"

    def parts(self, value: str) -> Iterator[Part]:
        """Yield the unknown parts of a value."""
        return (self._parts[int(found[1])] for found in _TOKEN.finditer(value))

    def only(self, value: str) -> Part | None:
        """Return the part if the value is a single token, or None."""
        found = _TOKEN.fullmatch(value)
        return self._parts[int(found[1])] if found else None

    def literal(self, value: str) -> str | None:
        """Return the text of a known value or default, or None."""
        if any(part.kind != "default" for part in self.parts(value)):
            return None
        return self.shown(value)

    def shown(self, value: str) -> str:
        """Return the value as the script spells it."""
        return _TOKEN.sub(lambda found: self._parts[int(found[1])].text, value)

    def derived(self, value: str, text: str, means: ArgumentMeaning = "") -> str:
        """Return a token for a value computed from another one, as unknown as its most unknown part."""
        parts = sorted(self.parts(value), key=lambda part: (_ORDER.index(part.kind), -part.depth))
        first = parts[0] if parts else Part("same", "")
        kind: Kind = "same" if first.kind == "default" else first.kind
        return self.token(Part(kind, text, first.depth, means))

    def replaced(self, value: str, **changes: Any) -> str:
        """Return the token with changes to its part; other values stay as they are."""
        part = self.only(value)
        return value if part is None else self.token(replace(part, **changes))

    def argument(self, value: str, depth: int) -> Argument:
        """Return an argument of a program on several nodes; words at ``depth`` or deeper expand on the nodes."""
        parts = list(self.parts(value))
        kinds = {part.kind for part in parts if part.depth >= depth}
        text = self.shown(value)
        text = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
        kind: ArgumentKind = "same"
        if all(part.kind == "default" for part in parts):
            kind = "literal"
        elif "random" in kinds or "node" in kinds:
            kind = "random" if "random" in kinds else "each"
        elif kinds & {"given", "any"}:
            kind = "open"
        elif any(part.kind == "node" for part in parts):
            kind = "once"
        return Argument(
            text=text,
            kind=kind,
            means=next((part.means for part in parts if part.means), ""),
            fallback=next((part.fallback for part in parts if part.fallback), ""),
            unless=next((part.unless for part in parts if part.unless), ""),
        )
