"""Lists of CPUs, and whether two share one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.node.topology.formats.cpus import cpu_ranges, share_a_cpu


def test_ranges_and_single_cpus_are_read() -> None:
    assert cpu_ranges("0-31,64,66-95") == ((0, 31), (64, 64), (66, 95))


@pytest.mark.parametrize("text", ["", "N/A", "0-", "1,,2", "0-3;reboot", "9" * 13])
def test_text_that_is_not_a_list_is_none(text: str) -> None:
    assert cpu_ranges(text) is None
    assert share_a_cpu(text, "0-3") is None


cpus = st.sets(st.integers(0, 40), min_size=1)


@given(cpus, cpus)
def test_lists_share_a_cpu_as_their_sets_do(one: set[int], two: set[int]) -> None:
    assert share_a_cpu(",".join(map(str, one)), ",".join(map(str, two))) is bool(one & two)


def test_two_disjoint_lists_of_thousands_are_compared_quickly() -> None:
    even, odd = (",".join(map(str, range(first, 6000, 2))) for first in (0, 1))
    assert share_a_cpu(even, odd) is False


def test_impossibly_long_list_is_none() -> None:
    assert cpu_ranges("0," * 100_000 + "0") is None
