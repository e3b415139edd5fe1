"""Real-world settings: each bad setting has only its own finding, and healthy environments have no finding."""

from ddp_doctor.model.choices import Severity
from tests.settings.cases import Case, bad, clean

#: The minimum number of bad and clean environments, so the lists do not shrink.
LEAST_BAD, LEAST_CLEAN = 80, 40

BAD, CLEAN = bad(), clean()


def _codes(case: Case) -> tuple[str, ...]:
    return tuple(sorted({finding.code for finding in case.findings()}))


def test_a_bad_setting_gets_only_its_finding_with_a_fix_and_undo() -> None:
    assert {case.name: _codes(case) for case in BAD} == {case.name: case.codes for case in BAD}
    for case in BAD:
        for finding in case.findings():
            assert all(remedy.undo for remedy in finding.remedies), (case.name, finding.code)
            assert finding.remedies or finding.severity is Severity.INFO, (case.name, finding.code)


def test_a_healthy_environment_has_no_findings() -> None:
    blamed = [
        (case.name, finding.code, finding.title)
        for case in CLEAN
        for finding in case.findings()
        if finding.severity is not Severity.INFO
    ]

    assert blamed == []
    assert {case.name: _codes(case) for case in CLEAN} == {case.name: case.codes for case in CLEAN}


def test_the_lists_are_long_and_name_each_environment_once() -> None:
    assert len(BAD) >= LEAST_BAD
    assert len(CLEAN) >= LEAST_CLEAN
    assert len({case.name for case in BAD}) == len(BAD)
    assert len({case.name for case in CLEAN}) == len(CLEAN)
