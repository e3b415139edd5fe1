"""The facts that the output of a job shows."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class LogLine(Frozen):
    """One line of output. ``text`` is without its prefix, cut, and without credentials."""

    file: str
    line: int  # from 1; 0 of a file without lines
    text: str


class SignSeen(Frozen):
    """A sign, where it stands, and the process that printed it, as far as prefixes tell."""

    sign: str  # its id in job_causes
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
