"""Real ranks for the tests of torch.compile."""

from collections.abc import Iterator

import pytest

from tests.rank_harness import Ranks


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    """Return three ranks of a gloo world. A scenario that never ends breaks them for all later tests."""
    with Ranks(3, preload=("tests.features.model.compile.test_compile",)) as started:
        yield started
