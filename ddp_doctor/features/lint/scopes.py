"""The bindings of names while a script is followed, including through branches."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddp_doctor.features.lint.values import Condition, Value

Key = tuple[object, str]  # a scope, a value or the name of a module, and a name in it


@dataclass(eq=False)
class Scope:
    """A module, a function while it runs, or the body of a class."""

    parent: Scope | None = None
    outer_names: set[str] = field(default_factory=set)  # names that the function declared global

    @property
    def module(self) -> Scope:
        """The outermost scope."""
        return self if self.parent is None else self.parent.module


@dataclass(eq=False, slots=True)
class Function(Value):
    """A function of the script, and the scope of its free names."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    scope: Scope = field(default_factory=Scope)
    cls: Class | None = None
    decorators: tuple[Value, ...] = ()  # decorators that may exclude ranks
    decorated: Function | None = None  # the result of a decorator of the script
    conditions: tuple[Condition, ...] = ()  # conditions around its definition in another function


@dataclass(eq=False, slots=True)
class Class(Value):
    """A class of the script; ``parts`` are its bases."""

    node: ast.ClassDef
    methods: dict[str, Function] = field(default_factory=dict)

    def find(self, name: str, depth: int = 8) -> Function | None:
        """Return a method of the class, or of a base class that the script defines."""
        if name in self.methods or not depth:
            return self.methods.get(name)
        bases = (option for base in self.parts for option in base.alternatives() if isinstance(option, Class))
        return next((found for base in bases if (found := base.find(name, depth - 1))), None)


class Store:
    """The last bindings of names and attributes. The bindings of a branch can be undone and merged."""

    def __init__(self) -> None:
        self._values: dict[Key, Value] = {}
        self._before: list[dict[Key, Value | None]] = []

    def find(self, scope: Scope | None, name: str) -> Value | None:
        """Return the value of the name in a scope or its enclosing scopes."""
        values = self._values
        while scope is not None:
            found = values.get((scope, name))
            if found is not None:
                return found
            scope = scope.parent
        return None

    def get(self, owner: object, name: str) -> Value | None:
        """Return the value of the name."""
        return self._values.get((owner, name))

    def bind(self, owner: object, name: str, value: Value) -> None:
        """Bind a name of a scope, or an attribute of a value."""
        if self._before and (owner, name) not in self._before[-1]:
            self._before[-1][owner, name] = self._values.get((owner, name))
        self._values[owner, name] = value

    def keep(self, owner: object, name: str, value: Value) -> None:
        """Keep an unbound attribute, so that reading it again gives the same value."""
        self._values[owner, name] = value

    def begin(self) -> None:
        """Begin a branch."""
        self._before.append({})

    def end(self) -> Mapping[Key, Value]:
        """End the branch, undo its bindings and return them."""
        before = self._before.pop()
        bound = {key: self._values[key] for key in before}
        for key, value in before.items():
            if value is None:
                del self._values[key]
            else:
                self._values[key] = value
        return bound

    def join(self, branches: Sequence[Mapping[Key, Value]]) -> None:
        """Continue after alternative branches; a branch without bindings is an empty mapping."""
        for key in dict.fromkeys(key for bound in branches for key in bound):
            options = [branch.get(key) or self._values.get(key) for branch in branches]
            known = list({id(option): option for option in options if option is not None}.values())
            self.bind(*key, known[0] if len(known) == 1 else Value(known[0].node, "choice", parts=tuple(known)))
