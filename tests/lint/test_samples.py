"""Samples of training scripts: exactly the lines that say ``# expect: CODE`` are reported, in every script alike."""

from pathlib import Path

import pytest

from ddp_doctor.lint.linting import lint_bytes
from ddp_doctor.lint.rules import RULES
from tests.lint.documents import FOLDER, OF_RULES, PUBLIC, Sample


@pytest.mark.parametrize("sample", [*OF_RULES, *PUBLIC], ids=str)
def test_a_sample_is_reported_on_the_lines_that_say_so_and_on_no_other(
    sample: Sample, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("beside") if sample.beside else Path()
    for name in sample.beside:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    linted = lint_bytes(str(folder / "train.py"), sample.text.encode())

    assert linted.unread is None
    assert linted.failures == ()
    assert {(finding.line, finding.code) for finding in linted.findings} == sample.expected


def test_every_rule_has_a_document_with_scripts_that_it_reports_and_others_of_which_nothing_is():
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
