"""The findings and the verdict of every recorded situation stay the same."""

from difflib import unified_diff

import pytest

from ddp_doctor.app import recordings
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.findings import lines
from tests.recordings import SITUATIONS, add, as_found, judged, load, path_of, raw, write


@pytest.mark.parametrize("situation", SITUATIONS)
def test_recording_has_the_expected_findings(situation: str):
    assert raw(situation)["expected"]["about"].strip()
    assert judged(situation).rule_failures == ()
    expected, found = path_of(situation).read_text(encoding="utf-8"), as_found(situation)
    if found != expected:
        changes = unified_diff(expected.splitlines(), found.splitlines(), "expected", "found", n=1, lineterm="")
        command = f"python -m tests.recordings write {situation}"
        pytest.fail("\n".join([*changes, "", f"To expect what is found: {command}"]), pytrace=False)


def test_recording_survives_serialization():
    changed = []
    for situation in SITUATIONS:
        written = load(situation).model_dump_json()
        again = Recording.model_validate_json(written)
        if again != load(situation) or again.model_dump_json() != written:
            changed.append(situation)

    assert changed == []


#: A remedy may begin with a command to type or the program to start.
TYPED = {"unset", "ssh", "srun", "mpirun"}


def test_remedy_reads_like_a_sentence():
    summaries = {
        remedy.summary
        for situation in SITUATIONS
        for finding in judged(situation).report.findings
        for remedy in finding.remedies
    }

    assert [summary for summary in summaries if not summary[0].isupper() and summary.split()[0] not in TYPED] == []


def test_line_to_paste_is_complete():
    """Placeholders are words in capitals; a … would be an argument, and zsh expands a ? even in comments."""
    pasted = {
        line.text.split(": ")[-1]
        for situation in SITUATIONS
        for finding in judged(situation).report.findings
        for line in lines(finding)
        if line.to_paste
    }

    assert [text for text in pasted if "…" in text or text.endswith("?")] == []


def test_recording_of_a_run_becomes_a_situation(tmp_path, monkeypatch):
    run = tmp_path / "run.json"
    run.write_text(load("gpus/one-lost").model_dump_json())
    monkeypatch.setattr("tests.recordings.FOLDER", tmp_path)

    add(run, "gpus/lost", "One GPU of eight is lost.")

    assert raw("gpus/lost")["expected"]["about"] == "One GPU of eight is lost."
    assert [one["code"] for one in raw("gpus/lost")["expected"]["findings"]] == ["DD304"]
    assert recordings.load_recording(tmp_path / "gpus/lost.json") == load("gpus/one-lost")
    assert not write("gpus/lost")
