import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.versions import (
    BUNDLED_NCCL,
    NCCL_ISSUES,
    dotted,
    first_torch_with,
    least_driver,
    release,
    too_old,
    wheel_index,
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.13.0+cpu", (2, 13, 0)),
        ("2.6.0a0+ecf3bae40a.nv25.01", (2, 6, 0)),
        ("535.129.03", (535, 129, 3)),
        ("v2.4", (2, 4)),
        ("unknown", ()),
        ("", ()),
    ],
)
def test_release_numbers(text, version):
    assert release(text) == version


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4).map(tuple))
def test_version_survives_serialization(version):
    assert release(dotted(version)) == version


@given(st.text())
def test_any_text_has_a_release_or_none(text):
    assert all(part >= 0 for part in release(text))


def test_drivers_and_wheels():
    assert least_driver("12.8") == (525, 60, 13)
    assert least_driver("") == least_driver("99.0") == ()
    assert (wheel_index((580, 95)), wheel_index((535, 1)), wheel_index((470,))) == ("cu130", "cu126", None)


def test_a_newer_torch_never_bundles_an_older_nccl():
    bundled = [BUNDLED_NCCL[torch] for torch in sorted(BUNDLED_NCCL)]
    assert bundled == sorted(bundled)
    assert first_torch_with((2, 27, 3)) == (2, 8)
    assert first_torch_with((99,)) is None


def test_every_known_fault_has_a_range_a_source_and_a_workaround():
    for issue in NCCL_ISSUES:
        assert issue.since < issue.before
        assert issue.source
        assert issue.torch_before or first_torch_with(issue.before)


def test_python_before_torch_before_end_of_life():
    worst = too_old("3.8.1", "2.1.0", ">=3.9.0", "2030-01-01")
    assert worst is not None
    assert worst.what == "Python 3.8.1"
    second = too_old("3.10.1", "2.1.0", ">=3.9.0,<4", "2030-01-01")
    assert second is not None
    assert second.what == "torch 2.1.0"
    assert too_old("3.13.1", None, None, "") is None
