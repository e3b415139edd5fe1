"""Real-world settings: each bad one gets its finding and no other, and healthy environments are left in peace."""

import pytest

from ddp_doctor.model.choices import Severity
from tests.settings import table
from tests.settings.cases import Case, bad, clean

#: The least number of bad and of clean environments, so that nobody thins the lists out.
LEAST_BAD, LEAST_CLEAN = 80, 40

BAD, CLEAN = bad(), clean()


def _name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", BAD, ids=_name)
def test_a_bad_setting_gets_its_finding_and_no_other(case: Case) -> None:
    assert tuple(sorted({one.code for one in case.findings()})) == case.codes


@pytest.mark.parametrize("case", CLEAN, ids=_name)
def test_a_healthy_environment_is_left_in_peace(case: Case) -> None:
    found = case.findings()

    assert [(one.code, one.title) for one in found if one.severity is not Severity.INFO] == []
    assert tuple(sorted({one.code for one in found})) == case.codes


@pytest.mark.parametrize("case", BAD, ids=_name)
def test_a_finding_about_settings_says_what_to_do_and_how_to_undo_it(case: Case) -> None:
    for one in case.findings():
        assert all(remedy.undo for remedy in one.remedies), one.code
        assert one.remedies or one.severity is Severity.INFO, one.code


def test_the_lists_are_long_and_name_each_environment_once() -> None:
    assert len(BAD) >= LEAST_BAD
    assert len(CLEAN) >= LEAST_CLEAN
    assert len({case.name for case in BAD}) == len(BAD)
    assert len({case.name for case in CLEAN}) == len(CLEAN)


def test_the_table_has_a_line_for_each_environment(capsys: pytest.CaptureFixture[str]) -> None:
    table.main()

    named = [line.split(" | ")[1].strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert list(dict.fromkeys(named)) == [case.name for case in (*BAD, *CLEAN)]
