"""Pickles that hold plain data, of every protocol, read without Python's own loader.

That loader imports and calls what a pickle names, takes memory for a memo as large as a pickle says, and hashes what a
pickle makes a key, however deep. Here a pickle can make dicts with keys of str and int, lists, tuples, str, int, float,
bool and None, out of its own bytes; any other opcode is refused. Time and memory are those of its length.
"""

import struct
from collections.abc import Callable
from typing import Any

#: Stands below the items of a list, tuple or dict that is being made.
_MARK = object()
#: Longest whole number: 64 bits are what torch writes.
_LONGEST_NUMBER_BYTES = 32


class NotPlainData(ValueError):
    """The pickle holds more than plain data, or is damaged. The text says which, in plain words."""


def plain_data(data: bytes) -> Any:
    """What the pickle holds; bytes behind its end are left alone. Raises NotPlainData."""
    machine = _Machine(data)
    at = -1
    try:
        while not machine.ended:
            at = machine.at
            opcode = data[at]
            machine.at = at + 1
            _OPCODES[opcode](machine)
        return machine.stack.pop()
    except KeyError:
        name = chr(data[at]) if 32 < data[at] < 127 else f"0x{data[at]:02x}"
        raise NotPlainData(f"more than plain data at byte {at} (opcode {name})") from None
    except (IndexError, struct.error):
        if machine.at >= len(data):
            raise NotPlainData("it is cut off") from None
        raise NotPlainData(f"damaged at byte {at}") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        if isinstance(error, NotPlainData):
            raise
        raise NotPlainData(f"damaged at byte {at}") from None


class _Machine:
    """The stack and the memo of a pickle that is being read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.ended = False
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        start = self.at
        self.at = end = start + count
        if end > len(self.data):
            raise NotPlainData("it is cut off")
        return self.data[start:end]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            self.at = len(self.data)
            raise NotPlainData("it is cut off")
        return self.take(end + 1 - self.at)[:-1]

    def items(self) -> list[Any]:
        """What stands above the last mark, taken off the stack with it."""
        stack = self.stack
        place = len(stack) - 1
        while stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise IndexError
        items = stack[place + 1 :]
        del stack[place:]
        return items


def _push(value: Any) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value)


def _number(count: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.number(count))


def _text(count: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(count)).decode("utf-8", "surrogatepass"))


def _signed(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(4), "little", signed=True))


def _long(count: int) -> Callable[[_Machine], None]:
    def read(machine: _Machine) -> None:
        length = machine.number(count)
        if length > _LONGEST_NUMBER_BYTES:
            raise NotPlainData("it holds a number longer than any that torch writes")
        machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))

    return read


def _float(machine: _Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.take(8))[0])


def _decimal(kind: Callable[[str], int | float]) -> Callable[[_Machine], None]:
    def read(machine: _Machine) -> None:
        line = machine.line()
        if len(line) > 3 * _LONGEST_NUMBER_BYTES:
            raise NotPlainData("it holds a number longer than any that torch writes")
        text = line.decode("ascii").rstrip("L")
        machine.stack.append(text == "01" if text in ("00", "01") else kind(text))

    return read


def _quoted(machine: _Machine) -> None:
    machine.stack.append(machine.line().decode("raw-unicode-escape"))


def _frame(machine: _Machine) -> None:
    machine.take(8)  # the length of what follows, which ends at STOP in any case


def _protocol(machine: _Machine) -> None:
    machine.take(1)


def _stop(machine: _Machine) -> None:
    machine.ended = True


def _put(machine: _Machine, place: int) -> None:
    if machine.stack[-1] is _MARK:
        raise IndexError
    machine.memo[place] = machine.stack[-1]


def _get(machine: _Machine, place: int) -> None:
    if place not in machine.memo:
        raise IndexError
    machine.stack.append(machine.memo[place])


def _tuple(count: int) -> Callable[[_Machine], None]:
    def make(machine: _Machine) -> None:
        if len(machine.stack) < count:
            raise IndexError
        items = machine.stack[-count:]
        machine.stack[-count:] = [_whole(items, tuple)]

    return make


def _whole(items: list[Any], kind: Callable[[list[Any]], Any]) -> Any:
    if any(item is _MARK for item in items):
        raise IndexError
    return kind(items)


def _made(kind: Callable[[list[Any]], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(kind(machine.items()))


def _pairs(items: list[Any]) -> dict[str | int, Any]:
    keys = items[::2]
    if len(items) % 2 or not all(type(key) in (str, int) for key in keys):
        raise NotPlainData("it holds a dict with keys that are no texts or numbers")
    return dict(zip(keys, items[1::2], strict=True))


def _append_to(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not list:
        raise TypeError
    target.extend(items)


def _set_in(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not dict:
        raise TypeError
    target.update(_pairs(items))


def _taken(machine: _Machine, count: int) -> list[Any]:
    if len(machine.stack) <= count:
        raise IndexError
    items = machine.stack[-count:]
    del machine.stack[-count:]
    return _whole(items, list)  # type: ignore[no-any-return]


#: What each opcode does (Python's Lib/pickletools.py); one that is not here names code, or makes what is not plain.
_OPCODES: dict[int, Callable[[_Machine], None]] = {
    ord(opcode): do
    for opcode, do in {
        "\x80": _protocol,
        "\x95": _frame,
        ".": _stop,
        "(": _push(_MARK),
        "N": _push(None),
        "\x88": _push(True),
        "\x89": _push(False),
        "K": _number(1),
        "M": _number(2),
        "J": _signed,
        "\x8a": _long(1),
        "\x8b": _long(4),
        "I": _decimal(int),
        "L": _decimal(int),
        "F": _decimal(float),
        "G": _float,
        "V": _quoted,
        "\x8c": _text(1),
        "X": _text(4),
        "\x8d": _text(8),
        "]": lambda machine: machine.stack.append([]),
        "}": lambda machine: machine.stack.append({}),
        ")": _push(()),
        "l": _made(list),
        "d": _made(_pairs),
        "t": _made(tuple),
        "\x85": _tuple(1),
        "\x86": _tuple(2),
        "\x87": _tuple(3),
        "a": lambda machine: _append_to(machine, _taken(machine, 1)),
        "e": lambda machine: _append_to(machine, machine.items()),
        "s": lambda machine: _set_in(machine, _taken(machine, 2)),
        "u": lambda machine: _set_in(machine, machine.items()),
        "q": lambda machine: _put(machine, machine.number(1)),
        "r": lambda machine: _put(machine, machine.number(4)),
        "p": lambda machine: _put(machine, int(machine.line())),
        "\x94": lambda machine: _put(machine, len(machine.memo)),
        "h": lambda machine: _get(machine, machine.number(1)),
        "j": lambda machine: _get(machine, machine.number(4)),
        "g": lambda machine: _get(machine, int(machine.line())),
    }.items()
}
