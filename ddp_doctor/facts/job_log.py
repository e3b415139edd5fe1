"""What is read of a job that has ended: its output, and the dumps of torch's flight recorder."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import FlightEntry


class LogLine(Frozen):
    """One line of output. ``text`` is without its prefix, cut, and without credentials."""

    file: str
    line: int  # from 1; 0 of a file without lines
    text: str


class SignSeen(Frozen):
    """A sign, where it stands, and the process that printed it, as far as prefixes tell."""

    sign: str  # its id in knowledge/job_causes
    where: LogLine
    rank: int | None = None
    local_rank: int | None = None  # if its rank is not known
    host: str | None = None
    pid: int | None = None
    at_s: float | None = None  # since the epoch, of a clock whose zone is not known; None where no time is printed
    values: dict[str, str] = Field(default_factory=dict)  # what the sign's pattern names
    times: int = 1  # lines that say the same, of this process
    last_line: int | None = None  # the last of them, in the same file
    in_init: bool = False  # of NCCL: the communicator that began before it became complete behind it
    ranks: tuple[int, ...] = ()  # all that print the same
    attempt: int = 0  # torchrun's, from 0: it starts all ranks anew where one fails


class ProcessSeen(Frozen):
    """The facts that the output shows about one process of the job."""

    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    gpu: int | None = None  # CUDA's number of it in the process
    last: LogLine | None = None  # the last line it printed
    exit_code: int | None = None
    signal: str | None = None  # SIGKILL
    ended_at: str | None = None  # by the launcher's clock: 2026-11-23_04:31:09


class RankSeen(ProcessSeen):
    """The facts that the output shows about one rank."""

    rank: int


class FileSeen(Frozen):
    """One input: a file, or a member of an archive, named as ARCHIVE:MEMBER."""

    name: str
    kind: str  # "output", "flight recorder", "kernel log" …
    size_bytes: int = 0
    lines: int = 0
    said: int | None = None  # number of the last line that is no part of a stack, where that is known
    good_end: LogLine | None = None  # the last line that shows a good end
    is_finished: bool = False  # it says that the run ended, not only that something was saved
    last_step: LogLine | None = None  # the last step, if steps continue to the end of the file
    stops: bool = False  # the file ends with the last step
    unusual: LogLine | None = None  # the last line about a fault, or the last line
    nan_since: LogLine | None = None  # from this line to the end of the file every loss is NaN or infinite
    unread: str | None = None  # why it was not read


class JobLogFact(Fact):
    """What a job's output says. Signs are in the order of the files and lines."""

    KIND: ClassVar[str] = "job-log/1"

    files: tuple[FileSeen, ...]
    signs: tuple[SignSeen, ...] = ()
    ranks: tuple[RankSeen, ...] = ()
    local_ranks: tuple[ProcessSeen, ...] = ()  # processes whose rank in the job is not known
    world_size: int | None = None
    launcher: str | None = None  # torchrun, accelerate, spawn, srun …
    torch_version: str | None = None
    backend: str | None = None  # nccl, nccl2, nccl-legacy, gloo


class RecordingFact(Fact):
    """A recording of the doctor's own, given beside a job's output; it is judged as its own command does."""

    KIND: ClassVar[str] = "recording/1"

    file: str
    recording: Recording


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
