"""The meaning of expressions when the script runs: a small graph of values, without types and numbers.

``model = DDP(net.to(device))`` becomes a Call of torch's DistributedDataParallel whose first argument is a Call of the
method ``to`` whose receiver is the value of ``net``. A name, an attribute and an element lead to the value last bound
to them, including through local functions, so that rules see the origin of a value. If branches bind different values,
the value is a choice, and ``alternatives`` are all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Literal, NamedTuple

Kind = Literal[
    "name", "free", "constant", "call", "attribute", "element", "choice", "tuple", "parameter", "loop", "other", "none"
]

#: Methods of a module that return the module itself.
SAME_OBJECT = frozenset(
    ("to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_", "apply")
)
#: Maximum number of values to follow: enough for the rules. In a loop, values may form a cycle.
_MOST_STEPS = 800
#: Maximum number of expressions to cache: several rules evaluate the same ones.
_MOST_KEPT = 500


@dataclass(eq=False, slots=True)
class Value:
    """A value. ``name`` is the dotted name of an import or builtin; the kind ``free`` is an undefined name."""

    node: ast.AST
    kind: Kind = "other"
    name: str = ""
    parts: tuple[Value, ...] = ()  # the values it consists of; for a choice its alternatives, the newest first
    attribute: str = ""  # the name of an attribute, or of an element with a constant index

    def __bool__(self) -> bool:
        """Return True unless it is NOTHING."""
        return self.kind != "none"

    @property
    def constant(self) -> object:
        """The constant, or None if it is not a constant (or is None itself)."""
        return self.node.value if isinstance(self.node, ast.Constant) and self.kind == "constant" else None

    @property
    def is_none(self) -> bool:
        """Return True if it is the constant None."""
        return self.kind == "constant" and self.constant is None

    @property
    def owner(self) -> Value:
        """The owner of this attribute, element or loop variable."""
        return self.parts[0] if self.parts and self.kind in ("attribute", "element", "loop") else NOTHING

    @property
    def wrapper(self) -> Value:
        """The wrapper: ``ddp`` of ``ddp.module``, otherwise the value itself."""
        return self.owner if self.kind == "attribute" and self.attribute == "module" else self

    @property
    def text(self) -> str:
        """The text of the value in the script."""
        return written(self.node) if self else ""

    @property
    def reference(self) -> str:
        """The dotted name of an import, even as one of several alternatives; otherwise empty."""
        if self.kind != "choice":
            return self.name if self.kind == "name" else ""
        return next((option.name for option in self.alternatives() if option.kind == "name"), "")

    def alternatives(self) -> Iterable[Value]:
        """Return the possible values: the value itself, or the parts of a choice."""
        return self._chosen() if self.kind == "choice" else (self,) if self else ()

    def _chosen(self) -> Iterator[Value]:
        options = _reached(self, lambda value: value.parts[::-1] if value.kind == "choice" else ())
        return (option for option in options if option.kind != "choice")

    def objects(self) -> Iterable[Value]:
        """Return the possible objects, without methods that return their receiver (``net.to(device)`` is ``net``) and
        local functions that return them."""
        return self._behind() if self.kind == "choice" else (self,) if self else ()

    def _behind(self) -> Iterator[Value]:
        waiting: list[Value] = [self]
        seen: set[int] = set()
        while waiting and len(seen) < _MOST_STEPS:
            for value in waiting.pop().alternatives():
                if id(value) in seen:
                    continue
                seen.add(id(value))
                if isinstance(value, Call) and not value.is_itself:
                    waiting.append(value.returned or (value.parts[0] if value.method else value.receiver))
                else:
                    yield value

    def makers(self) -> Iterator[Call]:
        """Yield the calls that made the possible objects."""
        return (option for option in self.objects() if isinstance(option, Call))

    def sources(self) -> Iterator[Value]:
        """Yield this value and everything it depends on: receivers, arguments, alternatives, results."""
        return _reached(self, attrgetter("parts")) if self else iter(())

    def calls(self) -> Iterator[Call]:
        """Yield the calls among its sources."""
        return (source for source in self.sources() if isinstance(source, Call))


def _reached(first: Value, onwards: Callable[[Value], Iterable[Value]]) -> Iterator[Value]:
    """Yield a value and everything reachable from it, each once; the last of a value's successors comes first."""
    waiting = [first]
    seen: set[int] = set()  # set[int]() takes ten times as long
    while waiting and len(seen) < _MOST_STEPS:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting += onwards(value)


#: An absent value: an argument that is not given, the receiver of a function, the result of ``return``.
NOTHING = Value(ast.Pass(), "none")


class Condition(NamedTuple):
    """A condition when a statement ran: ``test`` was ``holds``; ``early`` if the other branch left the block.

    ``always``: it holds in every job, for example ``world_size > 1``.
    """

    test: Value
    holds: bool
    early: bool = False
    always: bool = False


@dataclass(eq=False, slots=True)
class Loop:
    """A loop around a call or statement; ``over`` is NOTHING for ``while``."""

    node: ast.AST
    over: Value = NOTHING
    test: Value = NOTHING


class Guard(NamedTuple):
    """A ``try`` around a call or statement: the loops around it, and the types its handlers catch, NOTHING for all."""

    node: ast.Try
    loops: tuple[Loop, ...]
    caught: tuple[Value, ...]


class Place(NamedTuple):  # made for every statement: a frozen dataclass takes five times as long
    """The context of a call or statement, including the local functions that led to it."""

    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None = None
    cls: ast.ClassDef | None = None
    conditions: tuple[Condition, ...] = ()
    loops: tuple[Loop, ...] = ()
    withs: tuple[Value, ...] = ()  # the context managers
    in_handler: bool = False  # inside ``except``
    depth: int = 0
    guards: tuple[Guard, ...] = ()  # enclosing try statements, the outermost first; not if in their handler
    launch: Call | None = None  # the call that started its process; None for the process of the script

    def under(self, *conditions: Condition) -> Place:
        """Return the same place with additional conditions."""
        function, cls, before, loops, withs, in_handler, depth, guards, launch = self
        return Place(function, cls, (*before, *conditions), loops, withs, in_handler, depth, guards, launch)

    def inside(self, loop: Loop) -> Place:
        """Return the same place inside a loop."""
        function, cls, conditions, before, withs, in_handler, depth, guards, launch = self
        return Place(function, cls, conditions, (*before, loop), withs, in_handler, depth, guards, launch)

    def excludes(self, other: Place) -> bool:
        """Return True if the two places are in different branches of one condition."""
        for mine, its in zip(self.conditions, other.conditions, strict=False):
            if mine.test is not its.test or mine.holds != its.holds:
                return mine.test is its.test
        return False


_OUTERMOST = Place()


@dataclass(frozen=True, slots=True)
class Leave:
    """A statement that leaves its block without an error: return, continue, break, or a successful exit."""

    node: ast.stmt
    place: Place
    order: int
    root: int
    value: Value = NOTHING  # the returned value


@dataclass(eq=False, slots=True)
class Call(Value):
    """A call at one moment. A line has several if its function is called from several places."""

    node: ast.Call
    callee: Value = NOTHING
    method: str = ""  # the name of a method: ``loader.sampler.set_epoch(1)`` has set_epoch
    receiver: Value = NOTHING  # the object of the method
    args: tuple[Value, ...] = ()  # positional, without those after a star
    keywords: dict[str, Value] = field(default_factory=dict)
    has_stars: bool = False  # *args or **kwargs may give any argument
    place: Place = _OUTERMOST
    order: int = 0
    root: int = 0  # calls are ordered only within one root
    local: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None = None  # if in the script
    returned: Value = NOTHING  # the result of a local function that was followed

    @property
    def is_itself(self) -> bool:
        """Return True if its result is unknown except that this call made it."""
        return not self.returned and self.method not in SAME_OBJECT

    def objects(self) -> Iterable[Value]:
        """Return the possible objects of the result."""
        return (self,) if self.is_itself else self._behind()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions from the outermost to the innermost, except those that hold in every job."""
        found = self.place.conditions
        return tuple([each for each in found if not each.always]) if any(each.always for each in found) else found

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops around it, the outermost first, including those around the calls that led to it."""
        return self.place.loops

    def argument(self, position: int | None, *names: str) -> Value:
        """Return an argument by keyword, otherwise by position; NOTHING if absent."""
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        return self.args[position] if position is not None and position < len(self.args) else NOTHING

    @property
    def arguments(self) -> tuple[Value, ...]:
        """All written arguments, except those after a star."""
        return (*self.args, *self.keywords.values())

    def given(self, position: int | None, *names: str) -> Value:
        """Return an argument that is not the constant None; NOTHING if it is or is absent."""
        found = self.argument(position, *names)
        return NOTHING if found.is_none else found

    @property
    def is_enabled(self) -> bool:
        """Return True if its argument ``enabled`` is True or absent."""
        enabled = self.argument(None, "enabled")
        return not enabled or enabled.constant is True

    def lacks(self, position: int | None, *names: str) -> bool:
        """Return True if an argument is certainly absent."""
        return not (self.has_stars or self.argument(position, *names))

    def comes_after(self, made: Call) -> bool:
        """Return True if an object was certainly made before this call: earlier, or by a constructor."""
        return made.precedes(self) or getattr(made.place.function, "name", "") == "__init__"

    def precedes(self, other: Call) -> bool:
        """Return True if it surely comes first; False if the order is unknown or only one of the calls runs."""
        return self.root == other.root and self.order < other.order and not self.place.excludes(other.place)


def is_result(value: Value, of: Callable[[Call], bool]) -> bool:
    """Return True if a value is the result of calls ``of`` this kind on every path through the script."""
    objects = list(value.objects())
    return bool(objects) and all(isinstance(option, Call) and of(option) for option in objects)


@lru_cache(maxsize=_MOST_KEPT)
def written(node: ast.AST) -> str:
    """Return the source of a node; dotted names, the most frequent case, without the slow ast.unparse."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        return f"{written(node.value)}.{node.attr}"
    return ast.unparse(node)


#: Fields of nodes without statements, expressions and parameters: half of all fields.
_NO_NODES = frozenset(("ctx", "op", "ops", "id", "attr", "arg", "kind", "type_comment"))


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each kind of node that may hold other nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = tuple(name for name in kind._fields if name not in _NO_NODES)
        return self[kind]


FIELDS = _Fields()
