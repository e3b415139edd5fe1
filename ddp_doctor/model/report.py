"""The report: what ``--json`` writes. Schema version 1.1, printed by ``ddp-doctor schema report``."""

from datetime import datetime, timedelta
from math import ceil
from typing import Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen, Json
from ddp_doctor.model.choices import CheckStatus, Confidence, Domain, Restart, Verdict
from ddp_doctor.model.finding import Culprit, Finding
from ddp_doctor.model.recording import Job, World

REPORT_SCHEMA_VERSION = "1.1"


class Tool(Frozen):
    """Who wrote the report."""

    name: str = "ddp-doctor"  # always ddp-doctor
    version: str  # its release


class CheckResult(Frozen):
    """What became of one check over all nodes and ranks."""

    id: str  # as in --only and --skip
    title: str  # what it looks at
    #: Passed; found: a finding rests on it; skipped, timed_out or failed: not evaluated, for the reason.
    status: CheckStatus
    reason: str | None = None  # why it was not evaluated, and where, if not everywhere
    duration_s: float = 0.0  # of the slowest node or rank


class Measurement(Frozen):
    """One number that was measured, with its unit and what it was measured of."""

    name: str  # such as allreduce_busbw
    value: float  # in the unit
    unit: str  # B, B/s, s, FLOP/s …; empty for a ratio
    #: Of what: the rank, the number of bytes, the GPU ….
    labels: dict[str, str | int | float] = Field(default_factory=dict)


class NodeVerdict(Frozen):
    """What the run says of one node."""

    node_rank: int  # its number in the run
    hostname: str  # its name, as the node itself says it
    verdict: Verdict  # unhealthy: an error names the node, or only its rank, GPU or link; degraded: a warning
    findings: tuple[str, ...] = ()  # fingerprints of those that name it, also of lesser ones
    #: Its hardware, versions of software and settings of the job, as far as they were seen: torch, GPUs, NCCL_ALGO …
    traits: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str] | None = None  # the other variables of NCCL, torch and the libraries below; None: unknown


class Report(Frozen):
    """The envelope that every diagnosing command writes."""

    #: Of this document; its first number is raised where fields change their meaning or go.
    schema_version: str = REPORT_SCHEMA_VERSION
    tool: Tool  # who wrote it
    run_id: str  # unique for each run; the name of the folder that keeps its recording
    started_at: str  # RFC 3339
    finished_at: str = ""  # RFC 3339; empty where the start is not known
    duration_s: float  # of the run in seconds
    job: Job | None = None  # the scheduler's, where the run was part of one
    world: World | None = None  # the nodes and ranks that were tested; null where no machine was
    nodes: tuple[NodeVerdict, ...] = ()  # each node and what was found of it; empty where no machine was tested
    verdict: Verdict  # by the worst finding; unsure: too little could be evaluated, or an error is only possible
    exit_code: int  # of the command: 0 healthy or degraded, 1 unhealthy, 2 wrongly used, 3 unsure, 130 interrupted
    summary: str  # the verdict in one sentence
    checks: tuple[CheckResult, ...] = ()  # what became of each check, in the order of a run
    findings: tuple[Finding, ...] = ()  # the faults, the gravest first
    measurements: tuple[Measurement, ...] = ()  # the numbers that were measured

    def as_json(self) -> str:
        """One document as ``ddp-doctor schema report`` describes it, indented, ending in a newline."""
        return self.model_dump_json(indent=1, exclude=self._absent(), by_alias=True) + "\n"

    def _absent(self) -> set[str]:
        """The keys that are left out because there is nothing under them."""
        return set()


def finished_at(started_at: str, duration_s: float) -> str:
    """When a run ended that began at ``started_at``, to the second; empty where that is no time of RFC 3339."""
    try:
        ended = datetime.fromisoformat(started_at.replace("Z", "+00:00")) + timedelta(seconds=ceil(duration_s))
    except (ValueError, OverflowError):
        return ""
    return ended.isoformat(timespec="seconds").replace("+00:00", "Z")


class Overruled(Frozen):
    """A value that does not count, because another source of settings comes first."""

    value: str | None  # None: kept back, like a credential
    source: str  # where it stands


class SettingInForce(Frozen):
    """One variable: what it is set to, by what, and what that means."""

    name: str  # of the variable
    value: str | None  # None: kept back, like a credential
    source: str  # "environment", "FILE:LINE", "line N" of the text, or "torchrun"
    since: str | None = None  # who set it, as far as that is known
    overrides: tuple[Overruled, ...] = ()  # what other sources say, which does not count
    default: str | None = None  # in the NCCL or torch that is here, else in the newest; None: unset; or "automatic"
    meaning: str | None = None  # None: nobody knows the name
    #: Whether NCCL or torch of the releases here read it.
    status: Literal["read", "not yet", "no longer", "renamed", "deprecated", "read by nothing", "unknown"]
    note: str | None = None  # why the value is not judged


class UnreadLine(Frozen):
    """A line of a script or manifest that was not read, and why."""

    line: int  # from 1
    text: str  # without credentials
    reason: str  # why it was not read
    is_launch: bool = False  # it starts ranks, or may, so that the verdict is unsure
    file: str = ""  # the script that has this line, if the given one runs another


class EnvReport(Report):
    """What ``env --json`` writes: the envelope, and the settings in force."""

    nccl: str | None = None  # the release that would be loaded, of which status and defaults speak
    torch: str | None = None  # the release that is installed
    rocm: str | None = (
        None  # the ROCm that torch is built for: its RCCL reads NCCL's names, and nothing of them is judged
    )
    settings: tuple[SettingInForce, ...] = ()  # the variables that are set, by name
    unread_lines: tuple[UnreadLine, ...] = ()  # lines of the text that were not read


class CauseLine(Frozen):
    """A line of output that a cause rests on."""

    file: str  # as it was given, or ARCHIVE:MEMBER
    line: int  # from 1
    text: str  # without its prefix and without credentials


class JobCauseReport(Frozen):
    """One thing that made the job fail."""

    name: str = Field(serialization_alias="class")  # such as shm-too-small
    confidence: Confidence  # proved by the output; likely; possible: the fact is proved and its cause is not
    domain: Domain  # where the fault is
    restart: Restart  # whether starting the same job again may help
    lines: tuple[CauseLine, ...] = ()  # what it rests on, the earliest first
    next_check: str = ""  # a command or a setting that would prove it
    culprits: tuple[Culprit, ...] = ()  # who or what is to blame; empty where that is not known


class JobFacts(Frozen):
    """What the output says of the job, failed or not; null or empty where it says nothing."""

    launcher: str | None = None  # torchrun, srun, mpirun, ray, kubernetes
    torch: str | None = None  # its release
    backend: str | None = None  # the class behind the process groups: nccl, nccl2, nccl-legacy, gloo
    nccl: str | None = None  # its release, and CUDA's it was built with: 2.27.5+cuda12.8; of several the first
    driver_cuda: str | None = None  # the newest CUDA that the driver knows
    ranks: int | None = None  # of the job
    nodes: tuple[str, ...] = ()  # host names
    communicators: tuple[int, ...] = ()  # NCCL's, by the number of their ranks
    communicators_begun: int = 0  # by a rank each; those of NCCL before 2.18.3 are known where they are complete
    communicators_complete: int = 0  # … and ready on that rank
    rings: int | None = None  # of a communicator, the most there are
    interfaces: tuple[str, ...] = ()  # those that NCCL bootstraps over
    nics: tuple[str, ...] = ()  # RDMA ports that NCCL found
    plugins: tuple[str, ...] = ()  # of NCCL, loaded from outside
    network: tuple[str, ...] = ()  # what NCCL chose between nodes: IB, Socket, AWS Libfabric …
    transports: dict[str, int] = Field(default_factory=dict)  # directed pairs of ranks by transport: P2P/CUMEM
    gpudirect: bool | None = None  # whether NICs read or write GPU memory; null where no data goes by the network
    nvls: bool | None = None  # whether some GPU offers NVSwitch's multicast; null where none says so
    measured_by: str | None = None  # who measured the all-reduces: nccl-tests, NCCL Inspector
    gpus: str | None = None  # those that nccl-tests measured: 8 NVIDIA H100 80GB HBM3


class LogsReport(Report):
    """What ``logs --json`` writes: the envelope, the causes, and what the output says of the job."""

    causes: tuple[JobCauseReport, ...] = ()  # in the order of time
    facts: JobFacts = JobFacts()


class FitEstimate(Frozen):
    """What a rank needs of memory under one strategy, and what was measured of it."""

    strategy: str  # as --strategy takes it: ddp, ddp-bucket-view, zero1, zero2, zero3, hsdp, zero3-offload
    words: str  # what it is: "ZeRO-3: FSDP2"
    checkpointing: bool  # activations are computed again in the backward
    moment: str  # at which the memory is highest: wrap, forward, backward, optimizer
    parts: dict[str, int]  # bytes at that moment by what takes them: parameters, gradients, optimizer, activations …
    peak_bytes: int  # their sum
    needed_bytes: int  # … or the peak that was measured, if higher, and what CUDA's caching allocator keeps beyond it
    fits: bool | None  # null where no memory is known, or a part of the estimate is missing
    batch: int | None  # samples of the largest batch of a rank that fits; null where that is not known
    sent_bytes: int  # that a rank sends in one step
    host_bytes: int  # in the host's memory: what is offloaded
    measured_bytes: int | None = None  # the highest peak of a rank in the steps of --measure
    measured_out_of_memory: bool = False  # … or that they ran out of it
    step_s: float | None = None  # seconds of the median of these steps, on the slowest rank


class FitReport(Report):
    """What ``fit --json`` writes: the envelope, what each strategy needs of memory, and which one to take."""

    memory_bytes: int | None = None  # of a GPU that the estimates are held against; null where none is known
    memory_of: str = ""  # whose memory that is: "the smallest of 8 GPUs"
    ranks: int = 0  # of the job that was estimated
    estimates: tuple[FitEstimate, ...] = ()  # of all strategies, with and without checkpointing
    advice: str = ""  # the strategy to take, and why


class TopologyReport(Report):
    """What ``topology --json`` writes: the envelope, the first matrix, and what else there is."""

    topology: Json = None
    topologies: tuple[Json, ...] | None = None  # all matrices, where there are several
    p2p: tuple[Json, ...] | None = None  # tables of nvidia-smi topo -p2p, each with its host
    nvlinks: tuple[Json, ...] | None = None  # outputs of nvidia-smi nvlink -s
    rocm: tuple[Json, ...] | None = None  # outputs of rocm-smi --showtopo

    def _absent(self) -> set[str]:
        optional = ("topologies", "p2p", "nvlinks", "rocm")
        return {name for name in optional if getattr(self, name) is None}
