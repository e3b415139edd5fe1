"""Every rule finds all lines that its bad samples expect, and is silent on its good ones: the rows of the table."""

import pytest

from tests.lint import table

OWN = [row for row in table.rows() if "DDL120" <= row[0] < "DDL160"]


@pytest.mark.parametrize("row", OWN, ids=lambda row: row[0])
def test_a_rule_finds_all_of_its_bad_samples_and_none_of_its_good_ones(row: tuple[str, ...]):
    _, _, _, bad, good = row
    found, _, wanted, _, _, bad_samples, _ = bad.split()
    silent, _, good_samples, _ = good.split()

    assert found == wanted
    assert silent == good_samples
    assert int(bad_samples) >= 2
    assert int(good_samples) >= 2
