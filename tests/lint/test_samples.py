"""Samples of training scripts: exactly the lines that say ``# expect: CODE`` are reported, in every file alike.

``DDL101_plain_bad.py`` has the fault of its rule, ``DDL101_plain_good.py`` has it mended; other files are whole
training scripts. A line may expect several codes: ``# expect: DDL101,DDL104``.
"""

import re
from pathlib import Path

import pytest

from ddp_doctor.lint.linting import lint_bytes

SAMPLES = sorted((Path(__file__).parent / "samples").rglob("*.py"))


def expected(path: Path) -> set[tuple[int, str]]:
    """Line and code of every finding that the file says it has."""
    return {
        (number, code)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (said := re.search(r"# expect: ([A-Z0-9, ]+)", line))
        for code in re.findall(r"DDL\d+", said[1])
    }


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_reported_on_the_lines_that_say_so_and_on_no_other(path: Path):
    linted = lint_bytes(str(path), path.read_bytes())

    assert linted.unread is None
    assert linted.failures == ()
    assert {(one.line, one.code) for one in linted.findings} == expected(path)


@pytest.mark.parametrize(
    "path", [one for one in SAMPLES if one.stem.endswith("_good")], ids=lambda path: path.stem
)
def test_a_good_sample_expects_nothing(path: Path):
    assert expected(path) == set()
