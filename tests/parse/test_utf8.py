import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.parse.text import as_utf8


@pytest.mark.parametrize(
    ("text", "expected"),
    [("eth0", "eth0"), ("träning", "träning"), (os.fsdecode(b"eth\xff"), r"eth\udcff"), ("\ud83d", r"\ud83d")],
)
def test_half_characters_are_written_out_and_others_kept(text: str, expected: str):
    assert as_utf8(text) == expected


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_encoded(text: str):
    as_utf8(text).encode("utf-8")
