"""The pydantic base of everything that is recorded or reported, its cache, and grouping."""

from collections.abc import Callable, Hashable, Iterable
from operator import is_
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

#: A JSON value. Recursive aliases confuse pydantic schemas, and every use is validated later.
Json = Any

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Frozen(BaseModel):
    """An immutable value. Unknown fields of a newer minor schema version are dropped."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore")


class Memo:
    """Values computed from a frozen value, in a private attribute that is not part of the value.

    ``model_copy`` passes a model's private attributes to its copy, even if the copy gets other fields. Therefore a kept
    value belongs to the exact objects that it was computed from.
    """

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._kept: dict[object, Any] = {}

    def once(self, of: tuple[object, ...], name: object, make: Callable[[], T]) -> T:
        """Return ``make()``, called once for each ``name`` as long as ``of`` are the same objects."""
        if len(of) != len(self._of) or not all(map(is_, of, self._of)):
            self._of, self._kept = of, {}
        kept = self._kept  # of these objects, even if ``make`` uses a copy
        if name not in kept:
            kept[name] = make()
        made: T = kept[name]
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memo)

    __hash__ = None  # type: ignore[assignment]  # mutable, so in no set; mypy knows no such class


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the values of each key; keys and values in their original order."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
