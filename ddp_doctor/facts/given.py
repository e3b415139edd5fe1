"""Files that are given to a command: dumps of torch's flight recorder, and recordings."""

from typing import ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import FlightEntry


class GroupSeen(Frozen):
    """A process group in one rank's dump: the last collectives it enqueued there, oldest first."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()  # its members, global ranks; () where the dump does not tell
    entries: tuple[FlightEntry, ...] = ()
    highest_seq: int = 0  # of the collectives enqueued, kept or not
    completed_seq: int = 0  # of the collectives that the rank has completed, kept or not
    wrapped: bool = False  # older entries were overwritten


class FlightDumpFact(Fact):
    """One rank's dump of the flight recorder. ``problem``: why there are no groups (empty, cut off, not to be read)."""

    KIND: ClassVar[str] = "flight-dump/1"

    file: str
    rank: int | None = None
    world_size: int | None = None
    version: str = ""
    groups: tuple[GroupSeen, ...] = ()
    oldest_at_s: float | None = None  # when the oldest entry that is kept was made, since the epoch
    newest_at_s: float | None = None  # and the newest
    written_at_s: float | None = None  # the file's time
    #: Of the newest open entry, or of the newest where none is; outermost first: /home/me/train.py:31 in main
    frames: tuple[str, ...] = ()
    open_order: tuple[str, ...] = ()  # its open collectives, GROUP:SEQ, in the order in which it enqueued them
    peers: tuple[str, ...] = ()  # the other ends of its open sends and receives, GROUP:NUMBER IN THE GROUP
    problem: str | None = None


class RecordingFact(Fact):
    """A recording of the doctor's own, given beside a job's output; it is judged as its own command does."""

    KIND: ClassVar[str] = "recording/1"

    file: str
    recording: Recording
