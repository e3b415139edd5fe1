"""The statements of ddp-doctor on settings match the table of tried settings for each release of NCCL."""

import re

import pytest

from tests.nccl_wheels import RELEASES
from tests.planted.settings import SETTINGS, Tried, at, doctor_says


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.name)
def test_ddp_doctor_predicts_what_the_real_nccl_made_of_a_value(row: Tried):
    said = {release: doctor_says(row.env, release) for release in RELEASES}

    assert {
        release: words
        for release, words in said.items()
        if not re.search(re.escape(at(release, row.doctor, row.doctor_of)), words)
    } == {}
