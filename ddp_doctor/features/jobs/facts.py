"""Facts from the output of a job, and facts about running jobs and their ranks."""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class LogLine(Frozen):
    """A line of output. ``text`` has no prefix and no credentials, and may be truncated."""

    file: str
    line: int  # from 1; 0 for a file without lines
    text: str


class SignSeen(Frozen):
    """A sign, its place, and the process that printed it if prefixes show that."""

    sign: str  # its id in table/
    where: LogLine
    rank: int | None = None
    local_rank: int | None = None  # if the rank is unknown
    host: str | None = None
    pid: int | None = None
    at_s: float | None = None  # since the epoch, from a clock of unknown time zone; None if no time is printed
    values: dict[str, str] = Field(default_factory=dict)  # the named groups of the sign's pattern
    times: int = 1  # number of such lines of this process
    last_line: int | None = None  # the last of them, in the same file
    in_init: bool = False  # NCCL only: the communicator being initialized at this line became complete later
    ranks: tuple[int, ...] = ()  # all ranks that print the same
    attempt: int = 0  # torchrun's attempt, from 0: torchrun restarts all ranks if one fails


class ProcessSeen(Frozen):
    """The facts that the output shows about one process of the job."""

    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    gpu: int | None = None  # its CUDA index in the process
    last: LogLine | None = None  # the last line it printed
    exit_code: int | None = None
    signal: str | None = None  # SIGKILL
    ended_at: str | None = None  # by the launcher's clock: 2026-11-23_04:31:09


class RankSeen(ProcessSeen):
    """The facts that the output shows about one rank."""

    rank: int


class FileSeen(Frozen):
    """An input: a file, or a member of an archive, named ARCHIVE:MEMBER."""

    name: str
    kind: str  # "output", "flight recorder", "kernel log" …
    size_bytes: int = 0
    lines: int = 0
    said: int | None = None  # number of the last line outside of a stack, if known
    good_end: LogLine | None = None  # the last line that shows a successful end
    is_finished: bool = False  # that line shows that the run ended, not only that something was saved
    last_step: LogLine | None = None  # the last step, if steps continue to the end of the file
    stops: bool = False  # the file ends with the last step
    unusual: LogLine | None = None  # the last line about a fault, or the last line
    nan_since: LogLine | None = None  # from this line to the end of the file every loss is NaN or infinite
    unread: str | None = None  # why it was not read
    document: str = ""  # the kind of document if no job printed it: "Markdown", "JSON" …


class JobLogFact(Fact):
    """The facts that a job's output shows. Signs are in the order of files and lines."""

    KIND: ClassVar[str] = "job-log/1"

    files: tuple[FileSeen, ...]
    signs: tuple[SignSeen, ...] = ()
    ranks: tuple[RankSeen, ...] = ()
    local_ranks: tuple[ProcessSeen, ...] = ()  # processes whose rank in the job is unknown
    world_size: int | None = None
    launcher: str | None = None  # torchrun, accelerate, spawn, srun …
    torch_version: str | None = None
    backend: str | None = None  # nccl, nccl2, nccl-legacy, gloo


#: The source of the rank numbers. Numbers in the order of starts only count processes.
NumberedBy = Literal["environment", "mp.spawn", "order of starts"]


class Look(Frozen):
    """A sample of a process. Counts are since its start."""

    at_s: float  # on a clock that all processes of the host share
    state: str  # R, S, D, T, t, Z as in /proc/PID/stat
    cpu_s: float = 0.0  # CPU time of all its threads
    main_cpu_s: float = 0.0  # CPU time of the training thread, usually the main thread
    main_queued_s: float = 0.0  # how long that thread was ready to run but had no CPU
    main_switches: int = 0  # context switches of that thread; if the count is unchanged, it has not run
    autograd_switches: int = 0  # context switches of the threads that run torch's backward passes
    gloo_switches: int = 0  # context switches of gloo's worker threads, which sleep while they wait for a rank
    network_cpu_s: float = 0.0  # CPU time of gloo's threads that send and receive
    io_bytes: int | None = None  # by read(2), write(2) and similar calls; None if the kernel does not report it
    wait_channel: str | None = None  # the kernel function in which that thread waits
    frames: tuple[str, ...] = ()  # Python stack, outermost frame first: /home/me/train.py:31 in main; () if not read
    holds_gil: bool = False  # whether it was running Python code


class ChildSeen(Frozen):
    """A process that a rank started."""

    pid: int
    kind: Literal["loader", "compiler", "other"]
    first: Look
    last: Look


class Unacknowledged(Frozen):
    """A TCP connection of a rank whose data the other end has not acknowledged."""

    peer: str  # address:port
    peer_rank: int | None = None  # if the peer is a rank seen on this host
    bytes: int = 0
    retransmissions: int = 0  # in a row, without an answer


class Refused(Frozen):
    """A data source (``door``) that refused access: why, and the one setting that grants access next time."""

    door: str
    why: str
    grant: str = ""


class Launched(Frozen):
    """A collective that ranks launched different numbers of times, according to two equal answers of NCCL's RAS."""

    operation: str  # AllReduce
    by_rank: tuple[tuple[int, int], ...]  # the ranks that RAS names, and how many each has launched
    others: int | None = None  # how many all other ranks launched; None if RAS names all ranks or the others differ


class Meeting(Frozen):
    """The place where launchers or ranks wait for each other before the job starts."""

    who: str  # torchrun, accelerate; "ranks"
    endpoint: str = ""  # HOST:PORT of the job; empty if unknown
    node: int | None = None  # node rank of a launcher
    expected: int | None = None  # number of nodes that a launcher's job needs
    came: int | None = None  # number of processes and other hosts connected to the endpoint; None if unknown
    answer: Literal["", "served", "connected", "open", "refused", "silent", "unresolved"] = ""  # state of the endpoint
    #: For launchers such as mpirun: the started program that has not exited, "ssh node2 (pid 77)", or "".
    program: str | None = None
    server: str = ""  # the program on this host that uses the port but is not part of the job: nginx (pid 77)
    waits: bool = True  # False for a launcher that has no ranks and does something else
    waited_s: float = 0.0  # since the last process was started


class LiveRankFact(Fact):
    """A rank of a running job. ``looks`` are samples in time order, none or the last in state Z if it exited."""

    KIND: ClassVar[str] = "live-rank/1"

    job: str  # LiveJobFact.job
    host: str
    pid: int
    pid_inside: int | None = None  # in its own pid namespace, if that is not ddp-doctor's
    rank: int
    numbered_by: NumberedBy = "environment"
    user: str = ""
    gpu: int | None = None  # NVML's index if NVML lists the process; otherwise CUDA's, from environment or local rank
    gpu_use: tuple[int, ...] = ()  # percent of time the GPU ran a kernel of any process, in each sample
    looks: tuple[Look, ...] = ()
    children: tuple[ChildSeen, ...] = ()
    unacknowledged: tuple[Unacknowledged, ...] = ()
    connections: tuple[tuple[str, str], ...] = ()  # TCP connections to other addresses: local and remote address:port
    groups: int = 0  # number of process groups, from the threads of gloo or NCCL; 0 if unknown
    over_nccl: bool = False  # whether it has NCCL threads, whose waits use an entire core
    default_group: bool | None = None  # whether its call is on the default group; None if unknown
    waits_for_work: bool = False  # its current line calls .wait() of an object that is not implemented in Python
    waits_for_gpu: bool = False  # … calls .item(), .cpu() or similar
    kernel: str = ""  # what that thread waits for, according to the kernel: read from the FIFO /data/in
    frozen: bool = False  # whether its control group is frozen
    traced_by: str = ""  # the process that traces it: gdb (pid 77)
    ended: str = ""  # how a zombie ended: exit 1, SIGKILL
    refused: tuple[Refused, ...] = ()


class LiveJobFact(Fact):
    """A job as seen on one host."""

    KIND: ClassVar[str] = "live-job/1"

    job: str  # name of the job, unique on the host
    host: str
    launcher: str | None = None  # torchrun, srun, mpirun, or the command's name
    launcher_pid: int | None = None
    world_size: int | None = None
    missing: tuple[int, ...] = ()  # ranks that should run on this host but do not, excluding zombies
    torch_version: str | None = None
    backend: str | None = None  # nccl or gloo, from the threads of its ranks
    watched_s: float = 0.0  # from the first sample to the last
    meeting: Meeting | None = None  # if the job has not begun
    ended: bool = False  # all its ranks on this host ended during the observation
    launched: tuple[Launched, ...] = ()
    in_container: bool = False  # observed from inside a pid namespace, so processes outside it were not visible
    refused: tuple[Refused, ...] = ()  # data sources of the entire job
