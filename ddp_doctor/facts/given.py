"""Files that are given to a command: dumps of torch's flight recorder, and recordings."""

from typing import ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import FlightEntry


class GroupSeen(Frozen):
    """A process group in one rank's dump: the last collectives it enqueued, oldest first."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()  # global ranks of its members; () if the dump does not list them
    entries: tuple[FlightEntry, ...] = ()
    highest_seq: int = 0  # of the enqueued collectives, kept or not
    completed_seq: int = 0  # of the collectives that the rank completed, kept or not
    wrapped: bool = False  # older entries were overwritten


class FlightDumpFact(Fact):
    """The flight recorder dump of one rank. ``problem``: why there are no groups (empty, truncated, unreadable)."""

    KIND: ClassVar[str] = "flight-dump/1"

    file: str
    rank: int | None = None
    world_size: int | None = None
    version: str = ""
    groups: tuple[GroupSeen, ...] = ()
    oldest_at_s: float | None = None  # time of the oldest kept entry, since the epoch
    newest_at_s: float | None = None  # … of the newest
    written_at_s: float | None = None  # the file's time
    #: Stack of the newest open entry, or of the newest entry if none is open; outermost first: /home/me/train.py:31 in
    #: main
    frames: tuple[str, ...] = ()
    open_order: tuple[str, ...] = ()  # its open collectives, GROUP:SEQ, in the order it enqueued them
    peers: tuple[str, ...] = ()  # peers of its open sends and receives, GROUP:NUMBER IN THE GROUP
    problem: str | None = None


class RecordingFact(Fact):
    """A recording of ddp-doctor given together with a job's output. It is evaluated as its own command does."""

    KIND: ClassVar[str] = "recording/1"

    file: str
    recording: Recording
