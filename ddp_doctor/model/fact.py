"""Facts and readings: what a probe saw, or why it could not look."""

from typing import ClassVar

from ddp_doctor.model.base import Frozen, Json
from ddp_doctor.model.choices import Status


class Fact(Frozen):
    """What was seen, in units, without opinion.

    Subclasses name their kind and its version (``KIND = "topology/1"``); units stand in the
    field names (``busbw_gb_per_s``).
    """

    KIND: ClassVar[str]

    def recorded(self) -> dict[str, Json]:
        """The fact as it stands in a recording: its fields and its kind."""
        return {"kind": self.KIND, **self.model_dump(mode="json")}


class Reading(Frozen):
    """The outcome of one probe on one node or rank."""

    check: str
    status: Status
    node: int = 0
    rank: int | None = None
    fact: dict[str, Json] | None = None
    reason: str | None = None
    started_at: float = 0.0  # seconds since the epoch
    duration_s: float = 0.0
    raw: str | None = None  # the text the fact was parsed from, so that a mended parser can re-read it


class CouldNotLook(Exception):
    """Raised by a probe that cannot yield a fact; the message is the reason shown to people."""

    status: ClassVar[Status] = Status.FAILED


class Absent(CouldNotLook):
    """The thing to look at does not exist here (no GPU, no such file)."""

    status = Status.ABSENT


class Skip(CouldNotLook):
    """The probe does not apply in this run (needs two ranks, no time left)."""

    status = Status.SKIPPED


class Failed(CouldNotLook):
    """The thing exists, and looking at it went wrong."""

    status = Status.FAILED


class TookTooLong(CouldNotLook):
    """Looking took longer than the deadline."""

    status = Status.TIMED_OUT
