"""Every rule finds all lines that its bad samples expect, and is silent on its good ones: the rows of the table."""

from ddp_doctor.lint.rules import RULES
from tests.lint import table


def test_every_rule_has_a_row_finds_all_of_its_bad_samples_and_none_of_its_good_ones():
    rows = {code: (bad, good) for code, _, _, bad, good in table.rows()}

    assert list(rows) == [rule.code for rule in RULES]
    for code, (bad, good) in rows.items():
        found, _, wanted, _, _, bad_samples, _ = bad.split()
        silent, _, good_samples, _ = good.split()
        assert (found, silent) == (wanted, good_samples), code
        assert min(int(wanted), int(bad_samples), int(good_samples)) >= 1, code
