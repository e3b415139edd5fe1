"""All lint rules in the order of their codes. A new rule is a function in a module of this package, with samples.

Each rule has samples in tests/features/lint/samples/CODE.md: scripts with the comment ``# expect: CODE`` on every
reported line, and scripts without findings.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from ddp_doctor.features.lint.rule import LintRule


def _all_rules() -> Iterator[LintRule]:
    for path in Path(__file__).parent.glob("[!_]*.py"):
        for value in vars(import_module(f"{__name__}.{path.stem}")).values():
            if isinstance(value, LintRule):
                yield value


RULES: tuple[LintRule, ...] = tuple(sorted(_all_rules(), key=lambda rule: rule.code))
