"""Every recorded situation, judged by all rules: the findings and the verdict must stay the same.

tests/recordings/SITUATION.json is a recording; SITUATION.expected.json says what it shows, where it
comes from, the verdict, and the exact set of codes that the doctor must give.
"""

import json
from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.model.choices import Verdict
from ddp_doctor.model.recording import Recording

FOLDER = Path(__file__).parent / "recordings"
SITUATIONS = sorted(path for path in FOLDER.glob("*.json") if not path.name.endswith(".expected.json"))


def _name(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", SITUATIONS, ids=_name)
def test_a_recording_is_judged_as_expected(path: Path):
    expected = json.loads(path.with_suffix(".expected.json").read_text())

    outcome = app.replay(path)

    assert outcome.rule_failures == ()
    assert {finding.code for finding in outcome.report.findings} == set(expected["codes"])
    assert outcome.report.verdict is Verdict(expected["verdict"])


@pytest.mark.parametrize("path", SITUATIONS, ids=_name)
def test_a_recording_survives_being_written_and_read_again(path: Path):
    recording = app.load_recording(path)

    again = Recording.model_validate_json(recording.model_dump_json())

    assert again == recording
    assert app.judge(again).report == app.judge(recording).report


#: A remedy may begin with what is typed or what was to be started.
TYPED = {"unset", "ssh", "srun", "mpirun"}


@pytest.mark.parametrize("path", SITUATIONS, ids=_name)
def test_a_remedy_reads_like_a_sentence(path: Path):
    for finding in app.replay(path).report.findings:
        for remedy in finding.remedies:
            assert remedy.summary[0].isupper() or remedy.summary.split()[0] in TYPED, remedy.summary


def test_every_expectation_has_its_recording_and_says_what_it_shows():
    expectations = sorted(FOLDER.glob("*.expected.json"))

    assert [path.with_name(path.name.replace(".expected", "")) for path in expectations] == SITUATIONS
    for path in expectations:
        expected = json.loads(path.read_text())
        assert set(expected) == {"about", "verdict", "codes"}, path.name
        assert expected["about"].strip(), path.name
