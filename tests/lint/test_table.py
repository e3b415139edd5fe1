"""Every rule finds all lines that its bad samples expect, and is silent on its good ones: the rows of the table."""

import pytest

from ddp_doctor.lint.rules import RULES
from tests.lint import table

ROWS = list(table.rows())


def test_every_rule_has_its_row():
    assert [row[0] for row in ROWS] == [rule.code for rule in RULES]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_rule_finds_all_of_its_bad_samples_and_none_of_its_good_ones(row: tuple[str, ...]):
    _, _, _, bad, good = row
    found, _, wanted, _, _, bad_samples, _ = bad.split()
    silent, _, good_samples, _ = good.split()

    assert found == wanted
    assert silent == good_samples
    assert int(wanted) >= 1
    assert int(bad_samples) >= 1
    assert int(good_samples) >= 1
