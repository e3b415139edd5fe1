"""Every recorded situation, judged by all rules: the findings and the verdict must stay the same.

tests/recordings/SITUATION.json is a recording; SITUATION.expected.json says what it shows, where it
comes from, the verdict, and the codes that the doctor must give, one for each finding.
"""

from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.model.choices import Verdict
from ddp_doctor.model.recording import Recording
from tests.recorded import FOLDER, SITUATIONS, codes, expected, judged, load


@pytest.mark.parametrize("path", SITUATIONS, ids=lambda path: path.stem)
def test_a_recording_is_judged_as_expected(path: Path):
    assert judged(path).rule_failures == ()
    assert codes(path) == sorted(expected(path)["codes"])
    assert judged(path).report.verdict is Verdict(expected(path)["verdict"])


def test_a_recording_survives_being_written_and_read_again():
    changed = []
    for path in SITUATIONS:
        again = Recording.model_validate_json(load(path).model_dump_json())
        if again != load(path) or app.judge(again).report != judged(path).report:
            changed.append(path.stem)

    assert changed == []


#: A remedy may begin with what is typed or what was to be started.
TYPED = {"unset", "ssh", "srun", "mpirun"}


def test_a_remedy_reads_like_a_sentence():
    summaries = {
        remedy.summary
        for path in SITUATIONS
        for finding in judged(path).report.findings
        for remedy in finding.remedies
    }

    assert [
        summary for summary in summaries if not summary[0].isupper() and summary.split()[0] not in TYPED
    ] == []


def test_every_expectation_has_its_recording_and_says_what_it_shows():
    expectations = sorted(FOLDER.glob("*.expected.json"))

    assert [path.with_name(path.name.replace(".expected", "")) for path in expectations] == SITUATIONS
    for path in SITUATIONS:
        assert set(expected(path)) == {"about", "verdict", "codes"}, path.name
        assert expected(path)["about"].strip(), path.name
