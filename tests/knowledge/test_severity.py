"""Tests of the limit between warnings and errors of slowdowns."""

import pytest

from ddp_doctor.knowledge.severity import of_detour, of_lost_share, of_slowdown


@pytest.mark.parametrize(("times", "severity"), [(1.2, "warning"), (2.99, "warning"), (3.0, "error"), (40.0, "error")])
def test_a_slowdown_is_an_error_from_three_times_on(times: float, severity: str):
    assert of_slowdown(times).value == severity


@pytest.mark.parametrize(("share", "severity"), [(0.5, "warning"), (0.66, "warning"), (0.67, "error"), (1.0, "error")])
def test_a_loss_of_two_thirds_is_an_error(share: float, severity: str):
    assert of_lost_share(share).value == severity


@pytest.mark.parametrize(
    ("fast", "slow", "severity"),
    [(50.0, 3.1, "error"), (50.0, 25.0, "warning"), (None, 3.1, "warning"), (50.0, None, "warning"), (0, 0, "warning")],
)
def test_a_slow_path_of_unknown_cost_is_a_warning(fast: float | None, slow: float | None, severity: str):
    assert of_detour(fast, slow).value == severity
