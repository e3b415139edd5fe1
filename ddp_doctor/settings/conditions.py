"""Conditions on the values of settings, as the rows of the table write them.

    any                   any value
    0, LOC                one of these
    not 0                 any other value
    < 4, > 1              a number below or above; "below" starts at 0, because negative means that NCCL chooses
    > NCCL_MAX_NCHANNELS  a number above that of another setting
    has LL128             a list that contains a word
    allows LL128          a list that contains it, or does not exclude it with ^
    unset, WARN           no value, or this one

A misread value (settings/values.py) is evaluated the way the library reads it: NCCL_P2P_DISABLE=true is 0.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Test = Literal["any", "is", "not", "below", "above", "has", "allows"]

_WORDS: Mapping[str, Test] = {"not": "not", "<": "below", ">": "above", "has": "has", "allows": "allows"}
_UNSET = "unset"
_STRTOLL = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", re.ASCII)


@dataclass(frozen=True)
class Condition:
    """A condition on a value."""

    test: Test
    operands: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """The values: "0", "LOC or 0", "below 4", "any value"."""
        listed = " or ".join(self.operands)
        return {
            "any": "any value",
            "is": listed,
            "not": f"all but {listed}",
            "below": f"below {listed}",
            "above": f"above {listed}",
            "has": f"a list with {listed}",
            "allows": f"a list that keeps {listed}",
        }[self.test]

    @property
    def example(self) -> str | None:
        """Return a value that meets the condition, or None if it depends on other settings."""
        if self.test == "is":
            return next((operand for operand in self.operands if operand != _UNSET), None)
        if self.test == "not":
            return next(number for number in ("1", "0") if number not in self.operands)
        return str(int(self.operands[0]) + 1) if self.test == "above" and self.operands[0].isdecimal() else None


#: Names with their conditions. All must hold.
When = tuple[tuple[str, Condition], ...]


def parse_condition(text: str) -> Condition:
    """Parse a condition from a row."""
    if text == "any":
        return Condition("any")
    word, _, behind_word = text.partition(" ")
    listed = behind_word if word in _WORDS else text
    return Condition(_WORDS.get(word, "is"), tuple(listed.split(", ")))


def parse_when(name: str, text: str) -> When:
    """The conditions of a row of ``name``: one about itself, or a line ``NAME: condition`` for each."""
    if not text.startswith("\n"):
        return ((name, parse_condition(text)),)
    lines = (line.partition(": ") for line in text.strip().splitlines())
    return tuple((about, parse_condition(condition)) for about, _, condition in lines)


def strtoll(text: str) -> tuple[int | None, str]:
    """Return the number that NCCL reads (decimal, 0x or octal; None without digits) and the remaining text."""
    found = _STRTOLL.match(text)
    if found is None:
        return None, text
    sign, digits = found.groups()
    is_octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
    number = int(digits, 8 if is_octal else 0)
    return -number if sign == "-" else number, text[found.end() :]


def asks_for(value: str, words: tuple[str, ...], *, or_keeps: bool) -> bool:
    """Return True if a list such as ``^LL;AllReduce:Tree,Ring`` contains one of the words.

    A list that starts with ^ excludes its words. With ``or_keeps``, the words that it does not exclude count.
    """
    sought = {word.upper() for word in words}
    for part in value.split(";"):
        names = part.rpartition(":")[2].strip().upper()
        excludes = names.startswith("^")
        named = {name.strip() for name in names.removeprefix("^").split(",")}
        if (or_keeps and not sought <= named) if excludes else sought & named:
            return True
    return False
