"""Running one probe, on a node or on a rank."""

import time
from collections.abc import Callable
from typing import TypeVar

from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import CouldNotLook, Fact, Reading

C = TypeVar("C")


def read(
    check: str, probe: Callable[[C], Fact], context: C, node: int = 0, rank: int | None = None
) -> Reading:
    """The reading of one probe. Where the probe could not look, its reason is the reading's."""
    started_at, started = time.time(), time.monotonic()
    fact, status, reason = None, Status.COLLECTED, None
    try:
        fact = probe(context).recorded()
    except CouldNotLook as error:
        status, reason = error.status, str(error)
    return Reading(
        check=check,
        status=status,
        node=node,
        rank=rank,
        fact=fact,
        reason=reason,
        started_at=started_at,
        duration_s=time.monotonic() - started,
        raw=getattr(context, "raw", None),
    )
