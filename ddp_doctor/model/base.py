"""The pydantic base of everything that is recorded or reported, what is kept of it, and how it is grouped."""

from collections.abc import Callable, Hashable, Iterable
from operator import is_
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

#: A JSON value. Recursive aliases confuse pydantic schemas, and every use is validated later.
Json = Any

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Frozen(BaseModel):
    """An immutable value; unknown fields of a newer minor schema are dropped, not fatal."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore")


class Memo:
    """What was worked out of a frozen value; a private attribute of it, and no part of the value.

    ``model_copy`` hands a model's private attributes on to its copy, also where the copy is given other
    fields. So what is kept here belongs to the very objects it was worked out of, and to no others.
    """

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._kept: dict[object, Any] = {}

    def once(self, of: tuple[object, ...], name: object, make: Callable[[], T]) -> T:
        """``make()``, called once for each ``name`` as long as ``of`` are the same objects."""
        if len(of) != len(self._of) or not all(map(is_, of, self._of)):
            self._of, self._kept = of, {}
        kept = self._kept  # of these objects, whatever ``make`` asks a copy for
        if name not in kept:
            kept[name] = make()
        made: T = kept[name]
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memo)

    __hash__ = None  # type: ignore[assignment]  # mutable, so in no set; mypy knows no such class


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """The values of each key; keys and values in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
