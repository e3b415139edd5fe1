"""Samples of training scripts: exactly the lines with ``# expect: CODE`` are reported."""

from pathlib import Path

import pytest

from ddp_doctor.features.lint.linting import lint_bytes
from ddp_doctor.features.lint.report import Linted
from ddp_doctor.features.lint.rules import RULES
from tests.features.lint.documents import FOLDER, OF_RULES, PUBLIC, Sample


@pytest.mark.parametrize("of", ["DDL10", "DDL11", "DDL12", "DDL13", "DDL14", "DDL15", "DDL16", "DDL17", "DDL18", ""])
def test_samples_are_reported_exactly_on_the_expected_lines(of: str, tmp_path: Path):
    samples = [sample for sample in (*OF_RULES, *PUBLIC) if sample.rule[:5] == of]
    linted = {str(sample): _linted(sample, tmp_path / str(number)) for number, sample in enumerate(samples)}

    assert {name: (file.unread, file.failures) for name, file in linted.items() if file.unread or file.failures} == {}
    found = {name: {(finding.line, finding.code) for finding in file.findings} for name, file in linted.items()}
    assert found == {str(sample): sample.expected for sample in samples}


def _linted(sample: Sample, folder: Path) -> Linted:
    for name in sample.beside:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return lint_bytes(str(folder / "train.py"), sample.text.encode())


def test_every_rule_has_reported_and_silent_samples():
    assert {sample.rule[:5] for sample in OF_RULES} == {rule.code[:5] for rule in RULES}
    for rule in RULES:
        samples = [sample for sample in OF_RULES if sample.rule == rule.code]

        title = (FOLDER / f"{rule.code}.md").read_text(encoding="utf-8").splitlines()[0]
        assert title == f"# {rule.code} {rule.name}"
        assert {sample.silent for sample in samples} == {False, True}, rule.code
        for sample in samples:
            codes = {code for _, code in sample.expected}
            assert codes == set() if sample.silent else rule.code in codes, str(sample)


def test_every_document_is_of_a_rule_and_its_headings_differ():
    names = [str(sample) for sample in OF_RULES]

    assert {sample.rule for sample in OF_RULES} == {rule.code for rule in RULES}
    assert len(names) == len(set(names))
