"""Every recorded situation, judged by all rules: the findings and the verdict must stay the same."""

import pytest

from ddp_doctor.app import recordings
from ddp_doctor.model.choices import Verdict
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.findings import lines
from tests.recorded import SITUATIONS, add, codes, expected, formatted, judged, load, path_of, raw


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_recording_is_judged_as_expected(situation: str):
    assert judged(situation).rule_failures == ()
    assert codes(situation) == sorted(expected(situation)["codes"])
    assert judged(situation).report.verdict is Verdict(expected(situation)["verdict"])


def test_a_recording_survives_being_written_and_read_again():
    changed = []
    for situation in SITUATIONS:
        written = load(situation).model_dump_json()
        again = Recording.model_validate_json(written)
        if again != load(situation) or again.model_dump_json() != written:
            changed.append(situation)

    assert changed == []


#: A remedy may begin with what is typed or what was to be started.
TYPED = {"unset", "ssh", "srun", "mpirun"}


def test_a_remedy_reads_like_a_sentence():
    summaries = {
        remedy.summary
        for situation in SITUATIONS
        for finding in judged(situation).report.findings
        for remedy in finding.remedies
    }

    assert [summary for summary in summaries if not summary[0].isupper() and summary.split()[0] not in TYPED] == []


def test_a_line_to_paste_is_whole():
    """What is to be filled in is a word in capitals; a … would be an argument, and zsh expands a ? even in remarks."""
    pasted = {
        line.text.split(": ")[-1]
        for situation in SITUATIONS
        for finding in judged(situation).report.findings
        for line in lines(finding)
        if line.to_paste
    }

    assert [text for text in pasted if "…" in text or text.endswith("?")] == []


def test_every_file_says_what_it_shows_and_is_written_in_the_one_form():
    for situation in SITUATIONS:
        assert set(expected(situation)) == {"about", "verdict", "codes"}, situation
        assert expected(situation)["about"].strip(), situation
        assert path_of(situation).read_text(encoding="utf-8") == formatted(raw(situation)), situation


def test_a_recording_of_a_run_becomes_a_situation(tmp_path, monkeypatch):
    run = tmp_path / "run.json"
    run.write_text(load("gpus/one-lost").model_dump_json())
    monkeypatch.setattr("tests.recorded.FOLDER", tmp_path)

    add(run, "gpus/lost", "One GPU of eight is lost.")

    lines = (tmp_path / "gpus/lost.json").read_text(encoding="utf-8").splitlines()
    assert '"about": "One GPU of eight is lost.", "verdict": "sick", "codes": ["DD304"]' in lines[1]
    assert recordings.load_recording(tmp_path / "gpus/lost.json") == load("gpus/one-lost")
