"""Every fault the stand-in for libnvidia-ml plays, to code, severity and verdict."""

import pytest

from tests.nvml_stand_in.fault_table import CASES, Case, play


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_simulated_fault_has_its_findings_and_verdict(case: Case) -> None:
    report = play(case)
    found = tuple((finding.code, finding.severity.value) for finding in report.findings)
    assert (found, report.verdict.value) == (case.expected, case.verdict)
