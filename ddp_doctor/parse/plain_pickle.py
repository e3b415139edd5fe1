"""Pickles that hold plain data, of every protocol, read without Python's own loader.

That loader imports and calls the names in a pickle, allocates a memo as large as a pickle claims, and hashes every key
of a pickle, however deep. In this module a pickle can make dicts with keys of str and int, lists, tuples, str, int,
float, bool and None, from its own bytes. Any other opcode is refused. Time and memory grow with its length.
"""

import io
import pickletools
import re
from collections.abc import Callable
from typing import Any

#: Marks the stack below the items of a list, tuple or dict that is being made.
_MARK = object()
#: Maximum length of an integer; torch writes 64 bits.
_LONGEST_NUMBER_BITS = 256
#: Python before 3.10.7 takes quadratic time for numbers with this many digits, which follow the opcodes INT and LONG.
_MANY_DIGITS = re.compile(rb"[IL][\s+-]*[\d_]{4300}")
_TOO_LONG = "it holds a number longer than any that torch writes"

#: Opcodes by their names in Python's Lib/pickletools.py. The argument of the first ones is the value.
_WITH_VALUE = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
_MEMORISED, _RECALLED = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"GET", "BINGET", "LONG_BINGET"}
_CONSTANTS = {"MARK": _MARK, "NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
#: The type that an opcode adds the last values, or the values above the mark, to.
_ADDED_TO: dict[str, Any] = {"APPEND": list, "APPENDS": list, "SETITEM": dict, "SETITEMS": dict}
_SKIPPED = {"PROTO", "FRAME", "STOP"}


class NotPlainData(ValueError):
    """The pickle contains more than plain data, or is damaged. The message gives the reason."""


def plain_data(data: bytes) -> Any:
    """Return the value in the pickle; bytes after its end are ignored. Raises NotPlainData."""
    if _MANY_DIGITS.search(data):
        raise NotPlainData(_TOO_LONG)
    file, values = io.BytesIO(data), _Values()
    try:
        for opcode, argument, at in pickletools.genops(file):
            values.take(opcode, argument, at)
        return values.stack.pop()
    except NotPlainData:
        raise
    except (LookupError, TypeError, ValueError, OverflowError):
        where = "it is truncated" if file.tell() >= len(data) else f"damaged at byte {file.tell()}"
        raise NotPlainData(where) from None


class _Values:
    """The stack and the memo of a pickle that is being read."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def take(self, info: pickletools.OpcodeInfo, argument: Any, at: int | None) -> None:
        """Execute an opcode. Raises NotPlainData if it names code or does not make plain data."""
        opcode = info.name
        if opcode in _WITH_VALUE:
            if type(argument) is int and argument.bit_length() > _LONGEST_NUMBER_BITS:
                raise NotPlainData(_TOO_LONG)
            self.stack.append(argument)
        elif opcode in _MEMORISED:
            if self.stack[-1] is _MARK:
                raise IndexError
            self._memo[len(self._memo) if argument is None else argument] = self.stack[-1]
        elif opcode in _RECALLED:
            self.stack.append(self._memo[argument])
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode])
        elif opcode in _EMPTY:
            self.stack.append(_EMPTY[opcode]())
        elif opcode in _TUPLES:
            self.stack.append(tuple(self._last(_TUPLES[opcode])))
        elif opcode in _OF_MARKED:
            self.stack.append(_OF_MARKED[opcode](self._above_mark()))
        elif opcode in _ADDED_TO:
            self._add(opcode)
        elif opcode not in _SKIPPED:
            name = info.code if info.code.isascii() else f"0x{ord(info.code):02x}"
            raise NotPlainData(f"the instruction at byte {at} (opcode {name}) is not plain data")

    def _last(self, count: int) -> list[Any]:
        """Pop and return this many values."""
        items = self.stack[-count:]
        if len(items) < count or any(item is _MARK for item in items):
            raise IndexError
        del self.stack[-count:]
        return items

    def _above_mark(self) -> list[Any]:
        """Pop the values above the last mark, and the mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise IndexError
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def _add(self, opcode: str) -> None:
        items = self._above_mark() if opcode.endswith("S") else self._last(1 if opcode == "APPEND" else 2)
        target = self.stack[-1]
        if type(target) is not _ADDED_TO[opcode]:
            raise TypeError
        if isinstance(target, dict):
            target.update(_pairs(items))
        else:
            target.extend(items)


def _pairs(items: list[Any]) -> dict[str | int, Any]:
    keys = items[::2]
    if len(items) % 2 or not all(type(key) in (str, int) for key in keys):
        raise NotPlainData("it has a dict with a key that is neither a string nor an integer")
    return dict(zip(keys, items[1::2], strict=True))


#: How an opcode makes a value from the values above the mark.
_OF_MARKED: dict[str, Callable[[list[Any]], Any]] = {"LIST": list, "TUPLE": tuple, "DICT": _pairs}
