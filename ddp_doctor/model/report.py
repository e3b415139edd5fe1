"""The report: the document that ``--json`` writes. Schema version 1.1, printed by ``ddp-doctor schema report``."""

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
    """The program that wrote the report."""

    name: str = "ddp-doctor"  # always ddp-doctor
    version: str  # its release


class CheckResult(Frozen):
    """The outcome of one check on all nodes and ranks."""

    id: str  # as in --only and --skip
    title: str  # what it tests
    #: Passed; found: a finding rests on it; skipped, timed_out or failed: not evaluated, for the reason.
    status: CheckStatus
    reason: str | None = None  # why it was not evaluated, and where, if not everywhere
    duration_s: float = 0.0  # of the slowest node or rank


class Measurement(Frozen):
    """A measured number, its unit, and what was measured."""

    name: str  # such as allreduce_busbw
    value: float  # in the unit
    unit: str  # B, B/s, s, FLOP/s …; empty for a ratio
    #: What was measured: the rank, the number of bytes, the GPU ….
    labels: dict[str, str | int | float] = Field(default_factory=dict)


class NodeVerdict(Frozen):
    """The verdict on one node."""

    node_rank: int  # its number in the run
    hostname: str  # its host name, as reported by the node itself
    verdict: Verdict  # unhealthy: an error names the node, or only its rank, GPU or link; degraded: a warning
    findings: tuple[str, ...] = ()  # fingerprints of findings that name it, including those with a lower severity
    #: Its hardware, versions of software and settings of the job that were seen: torch, GPUs, NCCL_ALGO …
    traits: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str] | None = None  # other variables of NCCL, torch and the libraries below; null: unknown


class Report(Frozen):
    """The envelope that every diagnosing command writes."""

    #: Version of this document. Its first number is raised if fields are removed or change their meaning.
    schema_version: str = REPORT_SCHEMA_VERSION
    tool: Tool  # the program that wrote it
    run_id: str  # unique for each run; the name of the directory with its recording
    started_at: str  # RFC 3339
    finished_at: str = ""  # RFC 3339; empty if the start is unknown
    duration_s: float  # of the run in seconds
    job: Job | None = None  # the scheduler's job, if the run was part of one
    world: World | None = None  # the nodes and ranks that were tested; null if no machine was tested
    nodes: tuple[NodeVerdict, ...] = ()  # each node and its findings; empty if no machine was tested
    verdict: Verdict  # by the worst finding; unsure: too little could be evaluated, or an error is only possible
    exit_code: int  # of the command: 0 healthy or degraded, 1 unhealthy, 2 wrong usage, 3 unsure, 130 interrupted
    summary: str  # the verdict in one sentence
    checks: tuple[CheckResult, ...] = ()  # the outcome of each check, in the order of a run
    findings: tuple[Finding, ...] = ()  # the faults, the most serious first
    measurements: tuple[Measurement, ...] = ()  # the numbers that were measured

    def as_json(self) -> str:
        """Return the document that ``ddp-doctor schema report`` describes, indented, with a final newline."""
        return self.model_dump_json(indent=1, exclude=self._absent(), by_alias=True) + "\n"

    def _absent(self) -> set[str]:
        """Return the keys that are omitted because they are empty."""
        return set()


def finished_at(started_at: str, duration_s: float) -> str:
    """Return when a run ended, to the second, or "" if ``started_at`` is not a time of RFC 3339."""
    try:
        ended = datetime.fromisoformat(started_at.replace("Z", "+00:00")) + timedelta(seconds=ceil(duration_s))
    except (ValueError, OverflowError):
        return ""
    return ended.isoformat(timespec="seconds").replace("+00:00", "Z")


class Overruled(Frozen):
    """A value that does not count, because another source of settings comes first."""

    value: str | None  # null: withheld, looks like a credential
    source: str  # where it is set


class SettingInForce(Frozen):
    """A variable: its value, the source of the value, and what the value means."""

    name: str  # of the variable
    value: str | None  # null: withheld, looks like a credential
    source: str  # "environment", "FILE:LINE", "line N" of the text, or "torchrun"
    since: str | None = None  # what set it, if known
    overrides: tuple[Overruled, ...] = ()  # values from other sources, which do not count
    default: str | None = None  # in the installed NCCL or torch, or in the newest; null: unset; or "automatic"
    meaning: str | None = None  # null: unknown variable
    #: Whether the installed releases of NCCL or torch read it.
    status: Literal["read", "not yet", "no longer", "renamed", "deprecated", "read by nothing", "unknown"]
    note: str | None = None  # why the value is not evaluated


class UnreadLine(Frozen):
    """A line of a script or manifest that was not read, and why."""

    line: int  # from 1
    text: str  # without credentials
    reason: str  # why it was not read
    is_launch: bool = False  # it starts ranks, or may start ranks, so the verdict is unsure
    file: str = ""  # the script that has this line, if the given one runs another


class EnvReport(Report):
    """The report of ``env --json``: the envelope, and the settings in force."""

    nccl: str | None = None  # the release that would be loaded; status and defaults are for it
    torch: str | None = None  # the release that is installed
    rocm: str | None = None  # the ROCm that torch is built for: its RCCL reads NCCL's names, which are not evaluated
    settings: tuple[SettingInForce, ...] = ()  # the variables that are set, by name
    unread_lines: tuple[UnreadLine, ...] = ()  # lines of the text that were not read


class CauseLine(Frozen):
    """A line of output that a cause rests on."""

    file: str  # as given, or ARCHIVE:MEMBER
    line: int  # from 1
    text: str  # without its prefix and without credentials


class JobCauseReport(Frozen):
    """A cause of the job's failure."""

    name: str = Field(serialization_alias="class")  # such as shm-too-small
    confidence: Confidence  # proved by the output; likely; possible: the fact is proved and its cause is not
    domain: Domain  # the place of the fault
    restart: Restart  # whether starting the same job again may help
    lines: tuple[CauseLine, ...] = ()  # the lines that it rests on, the earliest first
    next_check: str = ""  # a command or a setting that would prove it
    culprits: tuple[Culprit, ...] = ()  # what is faulty; empty if unknown


class JobFacts(Frozen):
    """Facts about the job from its output, even if it did not fail; null or empty if not in the output."""

    launcher: str | None = None  # torchrun, srun, mpirun, ray, kubernetes
    torch: str | None = None  # its release
    backend: str | None = None  # the class behind the process groups: nccl, nccl2, nccl-legacy, gloo
    nccl: str | None = None  # its release and the CUDA release it was built with: 2.27.5+cuda12.8; the first of several
    driver_cuda: str | None = None  # the newest CUDA that the driver supports
    ranks: int | None = None  # of the job
    nodes: tuple[str, ...] = ()  # host names
    communicators: tuple[int, ...] = ()  # NCCL's, by the number of their ranks
    communicators_begun: int = 0  # one per rank; before NCCL 2.18.3 only complete ones are known
    communicators_complete: int = 0  # … and ready on that rank
    rings: int | None = None  # of a communicator, the maximum
    interfaces: tuple[str, ...] = ()  # that NCCL bootstraps over
    nics: tuple[str, ...] = ()  # RDMA ports that NCCL found
    plugins: tuple[str, ...] = ()  # of NCCL, loaded from outside
    network: tuple[str, ...] = ()  # NCCL's choice between nodes: IB, Socket, AWS Libfabric …
    transports: dict[str, int] = Field(default_factory=dict)  # directed pairs of ranks by transport: P2P/CUMEM
    gpudirect: bool | None = None  # whether NICs read or write GPU memory; null if no data crosses the network
    nvls: bool | None = None  # whether any GPU offers NVSwitch's multicast; null if not reported
    measured_by: str | None = None  # the program that measured the all-reduces: nccl-tests, NCCL Inspector
    gpus: str | None = None  # measured by nccl-tests: 8 NVIDIA H100 80GB HBM3


class LogsReport(Report):
    """The report of ``logs --json``: the envelope, the causes, and facts about the job from its output."""

    causes: tuple[JobCauseReport, ...] = ()  # ordered by time
    facts: JobFacts = JobFacts()


class TopologyReport(Report):
    """The report of ``topology --json``: the envelope, the first matrix, and further data."""

    topology: Json = None
    topologies: tuple[Json, ...] | None = None  # all matrices, if there are several
    p2p: tuple[Json, ...] | None = None  # tables of nvidia-smi topo -p2p, each with its host
    nvlinks: tuple[Json, ...] | None = None  # outputs of nvidia-smi nvlink -s
    rocm: tuple[Json, ...] | None = None  # outputs of rocm-smi --showtopo

    def _absent(self) -> set[str]:
        optional = ("topologies", "p2p", "nvlinks", "rocm")
        return {name for name in optional if getattr(self, name) is None}
