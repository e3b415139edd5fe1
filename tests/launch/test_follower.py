"""The follower agent's response to the head's orders."""

from typing import Any, cast

import pytest

from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.node_run.follower_agent import FollowerAgent
from ddp_doctor.engine.node_run.partial_recording import PartialRecording


class _OneOrder:
    """A group whose head has one order."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order

    def next_order(self) -> dict[str, Any]:
        return self._order


def test_an_order_with_a_check_of_another_release_is_refused_by_its_name():
    group = _OneOrder({"do": "probe", "when": "between", "checks": ["connectivity", "weather"]})
    known = {check.id: check for check in CHECKS}
    follower = FollowerAgent(cast("Any", group), cast("Any", None), known, lambda _checks: [], PartialRecording())

    with pytest.raises(ValueError, match="does not have the check weather"):
        follower.run()
