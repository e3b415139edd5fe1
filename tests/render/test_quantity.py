"""Numbers for people: the unit fits the size, and nothing prints as 6.71089e+07."""

import pytest

from ddp_doctor.render.text import amount


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.050292, "s", "50.29 ms"),
        (2.6e-05, "s", "26 us"),
        (0.7, "s", "0.7 s"),
        (0.0, "s", "0 s"),
        (3600.1, "s", "3600 s"),
        (86400.5, "s", "86400 s"),
        (-40.2, "s", "-40.2 s"),
        (1.43721e9, "B/s", "1.437 GB/s"),
        (1440, "B", "1440 B"),
        (1048575, "B", "1048575 B"),
        (67108864, "B", "64 MiB"),
        (0, "B", "0 B"),
        (22.4, "GB/s", "22.4 GB/s"),
        (8, "ranks", "8 ranks"),
        (0.5, None, "0.5"),
        (4194304, "elements", "4194304 elements"),
        (float("inf"), "s", "inf s"),
    ],
)
def test_value_is_shown_in_a_unit_of_its_size(value, unit, words):
    assert amount(value, unit) == words
