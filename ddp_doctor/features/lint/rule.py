"""Lint rules: functions from a script to faulty places in it, identified by a stable code."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Value
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.rule import Described


@dataclass(frozen=True)
class Spot:
    """A place in a script with its fault; the rule's code, name and severity complete it."""

    at: Value | ast.AST
    title: str  # one line: the fault, with the script's own names
    detail: str = ""
    remedy: str = ""  # one line: the fix
    write: tuple[str, ...] = ()  # lines of Python to paste
    cost: str = ""
    severity: Severity | None = None  # only if it differs from the rule's own
    confidence: Confidence = Confidence.LIKELY

    @property
    def node(self) -> ast.AST:
        """The node of the place."""
        return self.at.node if isinstance(self.at, Value) else self.at


LintFunction = Callable[[Script], Iterable[Spot]]


def hand_written(script: Script) -> bool:
    """Return True for a script of a distributed job that prepares models and data without a library."""
    return script.is_distributed and not script.libraries


def always(_script: Script) -> bool:
    """Return True for any script."""
    return True


@dataclass(frozen=True)
class LintRule(Described):
    """A rule on the scripts for which ``concerns`` is true."""

    function: LintFunction
    concerns: Callable[[Script], bool] = hand_written

    def apply(self, script: Script) -> Iterable[Spot]:
        """Return the spots, one for each position."""
        if not self.concerns(script):
            return
        seen = set[tuple[int, int]]()
        for spot in self.function(script):
            position = (getattr(spot.node, "lineno", 1), getattr(spot.node, "col_offset", 0))
            if position not in seen:
                seen.add(position)
                yield spot


def lint_rule(
    code: str, name: str, consequence: Consequence, *, concerns: Callable[[Script], bool] = hand_written
) -> Callable[[LintFunction], LintRule]:
    """Make a LintRule of a function; its docstring becomes the page of ``ddp-doctor explain``."""

    def decorate(function: LintFunction) -> LintRule:
        return LintRule(code, name, consequence, inspect.getdoc(function) or "", function, concerns)

    return decorate
