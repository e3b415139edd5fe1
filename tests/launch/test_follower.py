"""What a follower does with the head's orders."""

from typing import Any, cast

import pytest

from ddp_doctor.agents.follower_agent import Follower
from ddp_doctor.checks import CHECKS


class _OneOrder:
    """A company whose head has one order."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order

    def next_order(self) -> dict[str, Any]:
        return self._order


def test_an_order_with_a_check_of_another_release_is_refused_by_its_name():
    company = _OneOrder({"do": "look", "when": "look", "checks": ["connectivity", "weather"]})
    known = {check.id: check for check in CHECKS}
    follower = Follower(cast("Any", company), cast("Any", None), known, lambda _checks: [], [])

    with pytest.raises(ValueError, match="no check weather"):
        follower.run()
