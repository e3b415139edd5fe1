"""Real ranks for the tests of the user's own model."""

from collections.abc import Iterator

import pytest

from tests.launch.conftest import play, session  # noqa: F401 - fixtures
from tests.rank_harness import Ranks


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    """Return four ranks of a gloo world. A scenario that never ends breaks them for all later tests."""
    with Ranks(4, preload=("tests.features.model.user_model.test_user_model",)) as started:
        yield started
