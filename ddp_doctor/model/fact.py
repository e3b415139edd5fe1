"""Facts and readings: the data that a probe read, or the reason why it could not."""

import time
from collections.abc import Callable
from typing import ClassVar, TypeVar

from ddp_doctor.model.base import Frozen, Json
from ddp_doctor.model.choices import Status


class Fact(Frozen):
    """The data that a probe read, in units, without an evaluation.

    Subclasses define their kind and its version (``KIND = "topology/1"``). Units are in the field names
    (``busbw_gb_per_s``).
    """

    KIND: ClassVar[str]

    def recorded(self) -> dict[str, Json]:
        """Return the fact as it is in a recording: its fields and its kind."""
        return {"kind": self.KIND, **self.model_dump(mode="json")}

    def collected(self, check: str, node: int = 0, rank: int | None = None) -> "Reading":
        """Return the reading of a check that yielded this fact."""
        return Reading(check=check, status=Status.COLLECTED, node=node, rank=rank, fact=self.recorded())


class Reading(Frozen):
    """The outcome of one probe on one node or rank."""

    check: str  # the id of its check
    status: Status  # whether there is a fact, or why there is none
    node: int = 0  # node rank
    rank: int | None = None  # null if it is a reading of the node instead of a rank
    part: str = ""  # of a check with several parts, each with a separate reading
    fact: dict[str, Json] | None = None  # the data that was read; its `kind` determines the fields
    reason: str | None = None  # why there is no fact
    started_at: float = 0.0  # seconds since the epoch
    duration_s: float = 0.0  # of the probe in seconds
    misused: bool = False  # the request is unusable, as the reason explains; the machine is not at fault
    raw: str | None = None  # the text that the fact was parsed from; a corrected parser can read it again


class CouldNotLook(Exception):
    """Raised by a probe that cannot yield a fact. The message is the reason shown to people."""

    status: ClassVar[Status] = Status.FAILED


class Absent(CouldNotLook):
    """The subject of the probe does not exist on this machine (no GPU, no such file)."""

    status = Status.ABSENT


class Skip(CouldNotLook):
    """The probe does not apply in this run (needs two ranks, no time left)."""

    status = Status.SKIPPED


class Failed(CouldNotLook):
    """The subject exists, but reading it failed."""

    status = Status.FAILED


class Misused(Failed):
    """The user's input for the probe is unusable on every rank: a usage error."""


class TookTooLong(CouldNotLook):
    """The probe took longer than its deadline."""

    status = Status.TIMED_OUT


C = TypeVar("C")


def read(check: str, probe: Callable[[C], Fact], context: C, node: int = 0, rank: int | None = None) -> Reading:
    """Return the reading of one probe. If the probe could not yield a fact, the reading has its reason."""
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
