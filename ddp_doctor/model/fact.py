"""Facts and readings: what a probe read, or why it could not."""

import time
from collections.abc import Callable
from typing import ClassVar, TypeVar

from ddp_doctor.model.base import Frozen, Json
from ddp_doctor.model.choices import Status


class Fact(Frozen):
    """What a probe read, in units, without opinion.

    Subclasses name their kind and its version (``KIND = "topology/1"``); units stand in the
    field names (``busbw_gb_per_s``).
    """

    KIND: ClassVar[str]

    def recorded(self) -> dict[str, Json]:
        """The fact as it is in a recording: its fields and its kind."""
        return {"kind": self.KIND, **self.model_dump(mode="json")}

    def collected(self, check: str, node: int = 0, rank: int | None = None) -> "Reading":
        """The reading of a check that yielded this fact."""
        return Reading(check=check, status=Status.COLLECTED, node=node, rank=rank, fact=self.recorded())


class Reading(Frozen):
    """The outcome of one probe on one node or rank."""

    check: str  # the id of its check
    status: Status  # whether there is a fact, else why there is none
    node: int = 0  # node rank
    rank: int | None = None  # null where the node was read and no rank
    part: str = ""  # of a check that does several things, each with a reading of its own
    fact: dict[str, Json] | None = None  # what was read; its `kind` says which fields it has
    reason: str | None = None  # why there is no fact
    started_at: float = 0.0  # seconds since the epoch
    duration_s: float = 0.0  # of the probe in seconds
    misused: bool = False  # not the machine: what was asked for cannot be used, and the reason says why
    raw: str | None = None  # the text the fact was parsed from, so that a corrected parser can read it again


class CouldNotLook(Exception):
    """Raised by a probe that cannot yield a fact; the message is the reason shown to people."""

    status: ClassVar[Status] = Status.FAILED


class Absent(CouldNotLook):
    """What the probe reads does not exist here (no GPU, no such file)."""

    status = Status.ABSENT


class Skip(CouldNotLook):
    """The probe does not apply in this run (needs two ranks, no time left)."""

    status = Status.SKIPPED


class Failed(CouldNotLook):
    """It exists, and reading it went wrong."""

    status = Status.FAILED


class Misused(Failed):
    """What the user named for the probe is not what it has to be, on every rank: a usage error."""


class TookTooLong(CouldNotLook):
    """The probe took longer than its deadline."""

    status = Status.TIMED_OUT


C = TypeVar("C")


def read(check: str, probe: Callable[[C], Fact], context: C, node: int = 0, rank: int | None = None) -> Reading:
    """The reading of one probe. Where the probe could not look, its reason is the reading's."""
    started_at, started = time.time(), time.monotonic()
    fact, status, reason, misused = None, Status.COLLECTED, None, False
    try:
        fact = probe(context).recorded()
    except CouldNotLook as error:
        status, reason, misused = error.status, str(error), isinstance(error, Misused)
    return Reading(
        check=check,
        status=status,
        node=node,
        rank=rank,
        fact=fact,
        reason=reason,
        started_at=started_at,
        duration_s=time.monotonic() - started,
        misused=misused,
        raw=getattr(context, "raw", None),
    )
