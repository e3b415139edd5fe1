"""The facts that the output of a job shows, and what ranks of running jobs do."""

from typing import ClassVar, Literal

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

    sign: str  # its id in table/
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
    document: str = ""  # "Markdown", "JSON" …: what it is if no job printed it


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


#: The source of the rank numbers. Numbers in the order of starts only count processes.
NumberedBy = Literal["environment", "mp.spawn", "order of starts"]


class Look(Frozen):
    """One look at a process. Counts are since its start."""

    at_s: float  # of a clock that all processes of the host share
    state: str  # R, S, D, T, t, Z as in /proc/PID/stat
    cpu_s: float = 0.0  # processor time of all its threads
    main_cpu_s: float = 0.0  # … of the thread that trains, usually the main thread
    main_queued_s: float = 0.0  # for how long that thread was ready to run but had no processor
    main_switches: int = 0  # how often that thread went to sleep or was put aside; no more of them: it has not run
    autograd_switches: int = 0  # the same of the threads in which torch runs backward passes
    gloo_switches: int = 0  # … of the threads in which gloo makes collectives: one that waits for a rank sleeps
    network_cpu_s: float = 0.0  # processor time of gloo's threads that send and receive
    io_bytes: int | None = None  # through read(2), write(2) and the like; None where the kernel does not say
    wait_channel: str | None = None  # the kernel function of that thread while it waits
    frames: tuple[str, ...] = ()  # its Python stack, outermost first: /home/me/train.py:31 in main; () where not read
    holds_gil: bool = False  # whether it ran Python at that moment


class ChildSeen(Frozen):
    """A process that a rank started."""

    pid: int
    kind: Literal["loader", "compiler", "other"]
    first: Look
    last: Look


class Unacknowledged(Frozen):
    """A TCP connection of a rank whose data the other end has not acknowledged."""

    peer: str  # address:port
    peer_rank: int | None = None  # where it is a rank that was seen here
    bytes: int = 0
    retransmissions: int = 0  # in a row, without an answer


class Refused(Frozen):
    """A door that did not open: why, and the one setting that opens it the next time."""

    door: str
    why: str
    grant: str = ""


class Launched(Frozen):
    """Of which collective ranks have launched different numbers, as NCCL's RAS said twice in the same words."""

    operation: str  # AllReduce
    by_rank: tuple[tuple[int, int], ...]  # the ranks that it names, and how many each has launched
    others: int | None = None  # how many all others have; None where it names all, or the others differ


class Meeting(Frozen):
    """The place where launchers or ranks wait for each other before the job starts."""

    who: str  # torchrun, accelerate; "ranks"
    endpoint: str = ""  # HOST:PORT of the job; empty if unknown
    node: int | None = None  # of a launcher: its node rank
    expected: int | None = None  # of launchers: the nodes that the job needs
    came: int | None = None  # processes and other hosts that are connected to the endpoint; None if unknown
    answer: Literal["", "served", "connected", "open", "refused", "silent", "unresolved"] = ""  # of the endpoint
    #: Of launchers such as mpirun: the program that it has started and that has not ended, "ssh node2 (pid 77)", or "".
    program: str | None = None
    server: str = ""  # the program of this host that has the port and is not of the job: nginx (pid 77)
    waits: bool = True  # False of a launcher that has no ranks and does something else
    waited_s: float = 0.0  # since the last of the processes was started


class LiveRankFact(Fact):
    """A rank of a job. ``looks`` are in the order of time; a rank that is gone has none, or the last in state Z."""

    KIND: ClassVar[str] = "live-rank/1"

    job: str  # LiveJobFact.job
    host: str
    pid: int
    pid_inside: int | None = None  # in its own pid namespace, where that is not the doctor's
    rank: int
    numbered_by: NumberedBy = "environment"
    user: str = ""
    gpu: int | None = None  # NVML's number where NVML lists the process; else CUDA's by environment or local rank
    gpu_use: tuple[int, ...] = ()  # percent of the time in which that GPU ran a kernel of anybody, at each sample
    looks: tuple[Look, ...] = ()
    children: tuple[ChildSeen, ...] = ()
    unacknowledged: tuple[Unacknowledged, ...] = ()
    connections: tuple[tuple[str, str], ...] = ()  # TCP to other addresses: address:port here and there
    groups: int = 0  # process groups, by gloo's or NCCL's threads; 0: not known
    over_nccl: bool = False  # by NCCL's threads, whose waits take a whole core
    default_group: bool | None = None  # whether its call is on the default group; None: not known
    waits_for_work: bool = False  # the line in which it stands ends in .wait() of something that is no Python
    waits_for_gpu: bool = False  # … in .item(), .cpu() or the like
    kernel: str = ""  # what the kernel says that thread waits for: read from the FIFO /data/in
    frozen: bool = False  # its control group is
    traced_by: str = ""  # gdb (pid 77)
    ended: str = ""  # of a zombie: exit 1, SIGKILL
    refused: tuple[Refused, ...] = ()


class LiveJobFact(Fact):
    """A job as one host shows it."""

    KIND: ClassVar[str] = "live-job/1"

    job: str  # names it among the jobs of the host
    host: str
    launcher: str | None = None  # torchrun, srun, mpirun, else the command's name
    launcher_pid: int | None = None
    world_size: int | None = None
    missing: tuple[int, ...] = ()  # ranks that this host should have and has not, zombies not counted
    torch_version: str | None = None
    backend: str | None = None  # nccl, gloo: whose threads there are
    watched_s: float = 0.0  # from the first look to the last
    meeting: Meeting | None = None  # while the job has not begun
    ended: bool = False  # all its ranks on this host ended during the observation
    launched: tuple[Launched, ...] = ()
    in_container: bool = False  # it was looked at from inside a pid namespace, so nothing outside of it was seen
    refused: tuple[Refused, ...] = ()  # doors of the whole job
