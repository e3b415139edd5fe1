"""The table of lint rules and samples: ``python -m tests.lint.table``.

| rule | name | severity | bad: found | good: silent |
|---|---|---|---|---|
| DDL121 | shuffle-together-with-sampler | error | 2 of 2 lines in 2 samples | 2 of 2 samples |
"""

from collections.abc import Iterator
from pathlib import Path

from ddp_doctor.lint.linting import lint_bytes
from ddp_doctor.lint.rule import LintRule
from ddp_doctor.lint.rules import RULES
from tests.lint.test_samples import SAMPLES, expected

HEAD = ("rule", "name", "severity", "bad: found", "good: silent")


def rows() -> Iterator[tuple[str, ...]]:
    """One row for each rule, from its own samples."""
    found = {path: _found(path) for path in SAMPLES}
    for rule in RULES:
        own = [path for path in SAMPLES if path.name.startswith(f"{rule.code}_")]
        yield rule.code, rule.name, rule.severity.value, _hits(rule, own, found), _silence(rule, own, found)


def _found(path: Path) -> set[tuple[int, str]]:
    return {(one.line, one.code) for one in lint_bytes(str(path), path.read_bytes()).findings}


def _hits(rule: LintRule, own: list[Path], found: dict[Path, set[tuple[int, str]]]) -> str:
    bad = [path for path in own if not path.stem.endswith("_good")]
    wanted = [(path, line) for path in bad for line, code in expected(path) if code == rule.code]
    hits = [line for path, line in wanted if (line, rule.code) in found[path]]
    return f"{len(hits)} of {len(wanted)} lines in {len(bad)} samples"


def _silence(rule: LintRule, own: list[Path], found: dict[Path, set[tuple[int, str]]]) -> str:
    good = [path for path in own if path.stem.endswith("_good")]
    silent = [path for path in good if all(code != rule.code for _, code in found[path])]
    return f"{len(silent)} of {len(good)} samples"


def main() -> None:
    """Print it."""
    print(f"| {' | '.join(HEAD)} |")
    print("|---" * len(HEAD) + "|")
    for row in rows():
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
