"""Scripts of frameworks, launched functions and rank conditions: only the marked lines are errors or warnings.

A line that ends in ``#!`` must be an error, in ``#?`` a warning. ``-> text`` after it is part of the title.
"""

import re
from pathlib import Path

import pytest

from ddp_doctor.features.lint.linting import lint_text
from tests.features.lint.documents import FOLDER

_MARK = re.compile(r"#([!?])(?: -> (.+))?$")
_SEVERITY = {"!": "error", "?": "warning"}


def _cases(file: Path) -> dict[str, str]:
    parts = file.read_text(encoding="utf-8").split("=== ")[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


def _wrong(text: str) -> list[str]:
    linted = lint_text("train.py", text)
    assert (linted.unread, linted.failures) == (None, ())
    marks = {number: mark for number, line in enumerate(text.splitlines(), 1) if (mark := _MARK.search(line))}
    serious = [finding for finding in linted.findings if finding.severity.value in _SEVERITY.values()]
    found = {(finding.line, finding.severity.value): finding.title for finding in serious}
    expected = {(line, _SEVERITY[mark[1]]): mark[2] or "" for line, mark in marks.items()}
    missing = [
        f"missing {key}: {title} ({found.get(key)})"
        for key, title in expected.items()
        if key not in found or title not in found[key]
    ]
    return [*missing, *(f"false {key}: {title}" for key, title in found.items() if key not in expected)]


@pytest.mark.parametrize("file", sorted((FOLDER / "frameworks").glob("*.txt")), ids=lambda file: file.stem)
def test_marked_lines_of_frameworks_are_reported(file: Path):
    cases = _cases(file)
    assert {name.split(":")[0] for name in cases} == {"broken", "right"}

    assert {name: wrong for name, text in cases.items() if (wrong := _wrong(text))} == {}
