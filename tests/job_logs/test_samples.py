"""Outputs of failed jobs: each cause is named in the samples below "Named" of its document, and in no other."""

from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.knowledge.job_causes import JOB_CAUSES, SIGNS, hangs
from ddp_doctor.model.report import LogsReport
from tests.job_logs.documents import FOLDER, SAMPLES, Sample


def judged(sample: Sample, folder: Path) -> LogsReport:
    for name, text in sample.files.items():
        (folder / name).write_text(text)
    report = app.logs([str(folder / name) for name in sample.files]).report
    assert isinstance(report, LogsReport)
    return report


@pytest.mark.parametrize("document", [path.stem for path in sorted(FOLDER.glob("*.md"))])
def test_the_cause_is_named_where_the_output_shows_it_and_nowhere_else(document: str, tmp_path: Path):
    for number, sample in enumerate(sample for sample in SAMPLES if sample.cause == document):
        (tmp_path / str(number)).mkdir()
        report = judged(sample, tmp_path / str(number))
        named = {cause.name: cause.confidence.value for cause in report.causes}
        who = {
            f"{culprit.kind} {culprit.rank if culprit.kind == 'rank' else culprit.name or culprit.node}"
            for finding in report.findings
            for culprit in finding.culprits
        }
        assert (document in named) is not sample.silent, str(sample)
        for expected in sample.expected:
            assert expected in (
                {*named, *(who or {"nobody"}), named.get(document)} if named else {"nothing"}
            ), str(sample)
        if not sample.silent and not any(e in {cause.name for cause in JOB_CAUSES} for e in sample.expected):
            assert set(named) == {document}, str(sample)


def test_every_cause_has_a_document_with_outputs_in_which_it_is_named_and_others_in_which_it_is_not():
    for cause in set(JOB_CAUSES) - set(hangs.CAUSES):  # of those test_wait_graph.py has dumps
        title = (FOLDER / f"{cause.name}.md").read_text(encoding="utf-8").splitlines()[0]
        assert title == f"# {cause.code} {cause.name}"
        assert {sample.silent for sample in SAMPLES if sample.cause == cause.name} == {False, True}, (
            cause.name
        )


def test_signs_have_ids_of_their_own_and_words_that_can_be_searched_for():
    signs = [sign for cause in JOB_CAUSES for sign in cause.signs]

    assert len(SIGNS) >= len({sign.id for sign in signs}) == len(signs)
    assert [
        sign.id
        for sign, _ in SIGNS.values()
        if not sign.words or not all(len(w) >= 5 and w.isascii() for w in sign.words)
    ] == []
