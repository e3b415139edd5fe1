"""Real ranks for the checks of all test modules: torch is imported once."""

from collections.abc import Iterator

import pytest

from tests.rank_harness import Ranks

#: Modules whose scenarios run on the ranks.
SCENARIOS = (
    "tests.checks.test_buffers",
    "tests.checks.test_checkpoint",
    "tests.checks.test_gpu_speed",
    "tests.checks.test_gradient_sync",
    "tests.checks.test_initial_state",
    "tests.checks.test_same_products",
    "tests.checks.test_stragglers",
    "tests.checks.test_step_time",
    "tests.checks.test_step_time_of_your_model",
)


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    """Four ranks of a gloo world. A scenario that never ends spoils them for all later tests."""
    with Ranks(4, preload=SCENARIOS) as started:
        yield started
