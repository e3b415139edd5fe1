"""The value of a variable if a test holds, and if it does not hold.

if isinstance(model, DDP):               a wrapper here
    state = model.module.state_dict()
else:                                    and the plain model here, whatever ``model`` was bound to
    state = model.state_dict()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ddp_doctor.features.lint import names
from ddp_doctor.features.lint.values import Call, Value

#: Classes of wrappers, whose attribute ``module`` is the model inside.
_WRAPPERS = frozenset((names.DDP, names.DATA_PARALLEL, names.FSDP[0]))
_DEEPEST = 6


class Claim(NamedTuple):
    """A test of the class of a value: ``isinstance(subject, classes)`` is true or false."""

    subject: Value
    classes: frozenset[str]  # the wrapper classes among them
    at: ast.AST  # the node that names the subject
    holds: bool

    def narrowed(self) -> Value:
        """Return the subject without the alternatives that the claim excludes; of unknown origin if none is left."""
        options = list(self.subject.alternatives())
        kept = [option for option in options if bool(self._is_one(option)) is self.holds]
        kept = kept or [option for option in options if self._is_one(option) is None]
        if len(kept) == len(options):
            return self.subject
        return kept[0] if len(kept) == 1 else Value(self.subject.node, "choice" if kept else "other", parts=tuple(kept))

    def _is_one(self, option: Value) -> bool | None:
        """Return whether an alternative is an object of the classes; None if unknown."""
        made = {each.name for each in option.makers()} & _WRAPPERS
        return bool(made & self.classes) if made else None


def claims(test: Value, *, holds: bool, depth: int = _DEEPEST) -> Iterator[Claim]:
    """Yield the claims about classes of values that are true if a test holds, or if it does not hold."""
    node = test.node
    if isinstance(test, Call):
        if test.returned and depth:
            yield from claims(test.returned, holds=holds, depth=depth - 1)
        elif len(test.args) == 2 and test.name in ("isinstance", "hasattr"):
            is_for_module = test.name == "hasattr" and test.args[1].constant == "module"
            yield from _claim(test.args[0], test.args[1], node, holds=holds, of_all=is_for_module)
    elif test.kind != "other" or not depth:
        return
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from claims(test.parts[0], holds=not holds, depth=depth - 1)
    elif isinstance(node, ast.BoolOp):
        for part in test.parts if isinstance(node.op, ast.And) is holds else ():
            yield from claims(part, holds=holds, depth=depth - 1)
    elif isinstance(node, ast.Compare) and len(test.parts) == 2:
        asked, classes = test.parts
        is_same = isinstance(node.ops[0], ast.Is | ast.Eq | ast.In) is holds
        if isinstance(asked, Call) and asked.name == "type" and len(asked.args) == 1:
            yield from _claim(asked.args[0], classes, node, holds=is_same)


def _claim(subject: Value, classes: Value, at: ast.AST, *, holds: bool, of_all: bool = False) -> Iterator[Claim]:
    asked = classes.parts if classes.kind == "tuple" else (classes,)
    wrappers = _WRAPPERS if of_all else _WRAPPERS & {each.reference for each in asked}
    if wrappers:
        yield Claim(subject, wrappers, at, holds)
