"""What an expression means when the script runs: a small graph of values, without types and without numbers.

``model = DDP(net.to(device))`` becomes a Call of torch's DistributedDataParallel whose first argument is a Call of
the method ``to`` whose receiver is whatever ``net`` was bound to. A name, an attribute and an element lead to the
value that was last bound to them, also through local functions, so that rules see where a value comes from.
Where branches bind different values, the value is a choice, and ``alternatives`` are all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

Kind = Literal[
    "name", "free", "constant", "call", "attribute", "element", "choice", "tuple", "parameter", "loop", "other"
]

#: Methods of a module that return the module itself.
SAME_OBJECT = frozenset(
    ("to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_", "apply")
)
#: How many values are followed: enough for the rules. In a loop values may form a circle.
_MOST_STEPS = 500
#: Expressions of one script: several rules ask about the same ones.
_MOST_KEPT = 500


@dataclass(eq=False, slots=True)
class Value:
    """One value. ``name`` is the dotted name of what was imported or is built in; of kind ``free`` are names
    that nothing here defines."""

    node: ast.AST
    kind: Kind = "other"
    name: str = ""
    parts: tuple[Value, ...] = ()  # what it is made of; of a choice the alternatives, the newest first
    attribute: str = ""  # of an attribute or of an element with a constant index

    @property
    def constant(self) -> object:
        """The constant, or None where it is no constant (or is None itself)."""
        return self.node.value if isinstance(self.node, ast.Constant) and self.kind == "constant" else None

    @property
    def owner(self) -> Value | None:
        """What it is an attribute, an element or a loop variable of."""
        return self.parts[0] if self.parts and self.kind in ("attribute", "element", "loop") else None

    @property
    def text(self) -> str:
        """How the script writes it."""
        return written(self.node)

    def alternatives(self) -> Iterable[Value]:
        """The values that it may be: itself, or the parts of a choice."""
        return self._chosen() if self.kind == "choice" else (self,)

    def _chosen(self) -> Iterator[Value]:
        waiting: list[Value] = [self]
        seen: set[int] = set()  # set[int]() takes ten times as long
        while waiting and len(seen) < _MOST_STEPS:
            value = waiting.pop(0)
            if id(value) in seen:
                continue
            seen.add(id(value))
            if value.kind == "choice":
                waiting[:0] = value.parts
            else:
                yield value

    @property
    def reference(self) -> str:
        """The dotted name of what was imported, also where that is one of several alternatives; else empty."""
        if self.kind != "choice":
            return self.name if self.kind == "name" else ""
        return next((option.name for option in self.alternatives() if option.kind == "name"), "")

    def sources(self) -> Iterator[Value]:
        """This value and all that it is made of, however far back: receivers, arguments, alternatives."""
        waiting: list[Value] = [self]
        seen: set[int] = set()  # set[int]() takes ten times as long
        while waiting and len(seen) < _MOST_STEPS:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield value
            waiting += value.parts

    def calls(self) -> Iterator[Call]:
        """The calls that it may be the result of."""
        return (option for option in self.alternatives() if isinstance(option, Call))

    def objects(self) -> Iterable[Value]:
        """The objects it may be, behind methods that return their own receiver (``net.to(device)`` is ``net``) and
        behind local functions that return them."""
        return self._behind() if self.kind == "choice" else (self,)

    def _behind(self) -> Iterator[Value]:
        waiting: list[Value] = [self]
        seen: set[int] = set()  # set[int]() takes ten times as long
        while waiting and len(seen) < _MOST_STEPS:
            for value in waiting.pop().alternatives():
                if id(value) in seen:
                    continue
                seen.add(id(value))
                if isinstance(value, Call) and value.returned is not None:
                    waiting.append(value.returned)
                elif isinstance(value, Call) and value.method in SAME_OBJECT and value.receiver is not None:
                    waiting.append(value.receiver)
                else:
                    yield value


class Condition(NamedTuple):
    """What held when something ran: ``test`` was ``holds``; ``early`` if the other branch left the block before."""

    test: Value
    holds: bool
    early: bool = False


@dataclass(eq=False, slots=True)
class Loop:
    """A loop around something; ``over`` is None for ``while``."""

    node: ast.AST
    over: Value | None = None
    test: Value | None = None


class Guard(NamedTuple):
    """A ``try`` around something: the loops outside of it, and what each of its handlers catches, None for all."""

    node: ast.Try
    loops: tuple[Loop, ...]
    caught: tuple[Value | None, ...]


class Place(NamedTuple):  # made for every statement: a frozen dataclass takes five times as long
    """The place of a call or statement: all that surrounds it, through the local functions that led there."""

    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None = None
    cls: ast.ClassDef | None = None
    conditions: tuple[Condition, ...] = ()
    loops: tuple[Loop, ...] = ()
    withs: tuple[Value, ...] = ()  # the context managers
    in_handler: bool = False  # inside of except
    depth: int = 0
    guards: tuple[Guard, ...] = ()  # the try around it, the outermost first; not those whose handler it is in

    def under(self, *conditions: Condition) -> Place:
        """The same place, where these hold as well."""
        function, cls, before, loops, withs, in_handler, depth, guards = self
        return Place(function, cls, (*before, *conditions), loops, withs, in_handler, depth, guards)

    def inside(self, loop: Loop) -> Place:
        """The same place, inside of a loop."""
        function, cls, conditions, before, withs, in_handler, depth, guards = self
        return Place(function, cls, conditions, (*before, loop), withs, in_handler, depth, guards)


_OUTERMOST = Place()


@dataclass(frozen=True, slots=True)
class Leave:
    """A statement that leaves its block without an error: return, continue, break, or a successful exit."""

    node: ast.stmt
    place: Place
    order: int
    root: int
    value: Value | None = None  # what it returns


@dataclass(eq=False, slots=True)
class Call(Value):
    """One call at one moment. A line has several if its function is called from several places."""

    callee: Value | None = None
    method: str = ""  # where it is an attribute of a value: ``loader.sampler.set_epoch(1)`` has set_epoch
    receiver: Value | None = None  # the value whose method it is
    args: tuple[Value, ...] = ()  # positional, without those behind a star
    keywords: dict[str, Value] = field(default_factory=dict)
    has_stars: bool = False  # *args or **kwargs may give any argument
    place: Place = _OUTERMOST
    order: int = 0
    root: int = 0  # calls are ordered only within one root
    local: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None = None  # what of the script it calls
    returned: Value | None = None  # by a local function that was followed

    @property
    def call(self) -> ast.Call:
        """The node, for its position."""
        assert isinstance(self.node, ast.Call)
        return self.node

    @property
    def is_itself(self) -> bool:
        """Whether nothing more is known of its result than that this call made it."""
        return self.returned is None and (self.receiver is None or self.method not in SAME_OBJECT)

    def objects(self) -> Iterable[Value]:
        """The objects that the result may be."""
        return (self,) if self.is_itself else self._behind()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What held, from the outermost condition to the innermost."""
        return self.place.conditions

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops around it, the outermost first; also those around the calls that led here."""
        return self.place.loops

    def argument(self, position: int | None, *names: str) -> Value | None:
        """An argument by keyword or else by position; None where it is not written."""
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        if position is not None and position < len(self.args):
            return self.args[position]
        return None

    @property
    def arguments(self) -> tuple[Value, ...]:
        """All arguments that are written, but for those behind a star."""
        return (*self.args, *self.keywords.values())

    def given(self, position: int | None, *names: str) -> Value | None:
        """An argument that is not the constant None; None where it is, or is not written."""
        found = self.argument(position, *names)
        is_none = found is not None and found.kind == "constant" and found.constant is None
        return None if is_none else found

    def lacks(self, position: int | None, *names: str) -> bool:
        """Whether an argument is surely not given."""
        return not self.has_stars and self.argument(position, *names) is None

    def precedes(self, other: Call) -> bool:
        """Whether it surely comes first; False also where the order is not known."""
        return self.root == other.root and self.order < other.order


def is_result(value: Value | None, of: Callable[[Call], bool]) -> bool:
    """Whether a value is the result of calls ``of`` this kind on every path through the script."""
    objects = list(value.objects()) if value is not None else []
    return bool(objects) and all(isinstance(option, Call) and of(option) for option in objects)


@lru_cache(maxsize=_MOST_KEPT)
def written(node: ast.AST) -> str:
    """The source of a node; dotted names, the most frequent case, without the slow ast.unparse."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        return f"{written(node.value)}.{node.attr}"
    return ast.unparse(node)


#: Fields of nodes that hold no statement, expression or parameter: half of all fields.
_NO_NODES = frozenset(("ctx", "op", "ops", "id", "attr", "arg", "kind", "type_comment"))


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each kind of node that may hold other nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = tuple(name for name in kind._fields if name not in _NO_NODES)
        return self[kind]


FIELDS = _Fields()
