"""Values that are accepted as ddp-doctor's own, and others."""

import json
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.agents.framing import Unreadable, is_part, mark, number_of_parts, packed, plain, unpacked

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES.filter(lambda value: "Infinity" not in json.dumps(value)))
def test_value_arrives_unchanged(value: Any):
    parts = packed(value)

    assert number_of_parts(plain(mark(len(parts)))) == len(parts)
    assert unpacked(parts) == value


@given(VALUES)
def test_part_is_distinguished_from_values_stored_directly(value: Any):
    assert all(map(is_part, packed(value)[:1]))
    assert not is_part(json.dumps(value).encode())
    assert not is_part(mark(1))


def test_number_that_is_not_finite_becomes_none():
    assert unpacked(packed({"a": [float("nan"), float("inf"), 1.5]})) == {"a": [None, None, 1.5]}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_unreadable(junk: bytes):
    for read in (plain, lambda one: unpacked([one]), lambda one: unpacked([zlib.compress(one)])):
        with suppress(Unreadable):
            read(junk)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"hello",
        b"NaN",
        b"[Infinity]",
        b"[" * 100_000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b"9" * 10_000,
        b'"\\ud800"',
        b"\xff\xfe",
    ],
)
def test_junk_is_unreadable(text: bytes):
    with pytest.raises(Unreadable):
        plain(text)
    with pytest.raises(Unreadable):
        unpacked([zlib.compress(text)])


@pytest.mark.parametrize("parts", [0, -1, 65, 10**30, 1.0, True, "2", None, [1]])
def test_a_wrong_number_of_parts_is_unreadable(parts: Any):
    with pytest.raises(Unreadable):
        number_of_parts({"parts": parts})


def test_a_value_that_is_cut_short_is_unreadable():
    (whole,) = packed(["x" * 100, "y"])

    with pytest.raises(Unreadable):
        unpacked([whole[:-6]])


@pytest.mark.fuzz
def test_message_that_unpacks_above_the_limit_is_unreadable():
    with pytest.raises(Unreadable):
        unpacked([zlib.compress(b" " * (257 * 1024 * 1024), level=1)])
