"""What tests of groups of nodes came to, in words."""

from collections.abc import Sequence

from ddp_doctor.views.isolation import How
from ddp_doctor.views.rates import wilson

#: Of one node or group, and of several.
_VERBS: dict[How, tuple[str, str]] = {
    "hung": ("hangs", "hang"),
    "failed": ("fails", "fail"),
    "wrong": ("sums wrongly", "sum wrongly"),
    "slow": ("is slow", "are slow"),
    "lost": ("falls silent", "fall silent"),
}
_DID: dict[How, str] = {"hung": "hung", "failed": "failed", "wrong": "summed wrongly", "slow": "slow", "lost": "silent"}


def verb(how: How, count: int = 1) -> str:
    """``hangs``, ``are slow``."""
    return _VERBS[how][count > 1]


def counted(how: How, failed: int, tests: int) -> str:
    """``3 of 3 tests hung``; ``4 of 20 tests failed (20 %, 95 % interval 8 to 42 %)`` where some passed."""
    said = f"{failed} of {tests} test{'s' if tests > 1 else ''} {_DID[how]}"
    if failed == tests:
        return said
    low, high = wilson(failed, tests)
    return f"{said} ({100 * failed / tests:.0f} %, 95 % interval {100 * low:.0f} to {100 * high:.0f} %)"


def of_usual(share: float | None) -> str:
    """``, 31 % of the usual rate``; nothing where no rate is the fault."""
    return "" if share is None else f", {100 * share:.0f} % of the usual rate"


def said(reason: str) -> str:
    """What a rank said, for the end of a line."""
    return f": {reason}" if reason else ""


def shared(traits: Sequence[str]) -> str:
    """A sentence on what some nodes have, and no other."""
    return f"These nodes alone have: {', '.join(traits)}." if traits else ""
