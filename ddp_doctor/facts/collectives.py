"""Facts of the collective checks and of the trials of fixes."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ddp_doctor.facts.node.host import BusyProcess
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Axis


class ProcessGroupFact(Fact):
    """The place of a rank in the process group."""

    KIND: ClassVar[str] = "process-group/1"

    backend: str  # from get_backend(): "nccl" or "gloo"
    backend_impl: str | None = None  # the class behind it: "nccl", "nccl2", "nccl-legacy", "gloo", or another
    group_rank: int
    world_size: int
    init_s: float  # init_process_group
    first_collective_s: float  # creates the communicator on NCCL
    device: str
    bound_device: str | None = None  # device that torch bound the group to
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    torch_version: str
    cuda_version: str | None = None
    nccl_available: bool
    gloo_available: bool
    pid: int


class TorchImport(Fact):
    """The import of torch, once per node. ``error`` is a traceback, ``stuck_at`` a Python stack.

    ``moving``: it was still computing at its deadline. It is slow, and it is unknown whether it would have finished.
    """

    KIND: ClassVar[str] = "torch-import/1"

    import_s: float
    error: str | None = None
    stuck_at: str | None = None
    moving: bool = False


#: Elements of a correctness payload: several gloo segments and NCCL slices, small enough for fp16.
ELEMENTS = 4096


class Wrong(Frozen):
    """A reduction whose result differs from the closed form."""

    dtype: str
    op: str
    elements: int  # number of wrong elements
    expected: float
    got: float  # the first wrong element
    alike: bool = False  # every wrong element is ``got``
    blamed: tuple[int, ...] = ()  # original ranks; the share of one of them is missing or doubled throughout


class SizeResult(Frozen):
    """The result for one message size: times of this rank, and the number of wrong elements in ``wrong``."""

    size_bytes: int
    time_us: float  # median
    min_us: float
    max_us: float
    iterations: int
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int
    mean_us: float | None = None  # None in older recordings, as are the fields below
    p99_us: float | None = None  # the 99th percentile by nearest rank
    count: int | None = None  # elements of a rank's share, nccl-tests' column
    in_place: bool | None = None
    again: bool = False  # measured twice; this is the faster one
    group: str = ""  # name of a part of the ranks: "within each node"


class AllReduceFact(Fact):
    """The all-reduces of one rank."""

    KIND: ClassVar[str] = "allreduce/1"

    ranks: int
    tested: tuple[str, ...]  # "float32 sum", …
    wrong: tuple[Wrong, ...] = ()
    repeatable: bool
    sizes: tuple[SizeResult, ...] = ()
    stopped_at_bytes: int | None = None  # first size that no longer fit the time or memory
    short_of: Literal["time", "memory"] | None = None  # which of the two; None in older recordings
    #: For each size starting with that one: seconds for all sizes up to it, or free bytes on the host or a rank's GPU.
    needs: tuple[float, ...] = ()
    measured_by: Literal["nccl-tests", "NCCL Inspector"] | None = None  # None: these ranks
    gpu_names: tuple[str, ...] = ()  # by rank; only if another tool measured and reports them
    nccl: str | None = None  # release; only if another tool measured and reports it


class WrongShare(Frozen):
    """The errors in one share of a result on one rank, in one case."""

    case: str  # "float32 sum", "uint8, not contiguous"
    source: int | None = None  # original rank that contributed the share; None: all ranks did
    elements: int  # number of wrong elements
    of: int
    expected: float
    got: float  # the first wrong element
    blamed: tuple[
        int, ...
    ] = ()  # original ranks; the contribution of one of them to a sum is missing or doubled throughout


class CollectiveFact(Fact):
    """The results of a collective on one rank."""

    KIND: ClassVar[str] = "collective/1"

    part: str  # a row of knowledge/collectives.py
    ranks: int
    tested: tuple[str, ...] = ()  # cases: "float32 sum"
    not_offered: dict[str, str] = Field(default_factory=dict)  # case, and the backend's message
    sources: dict[int, int] = Field(
        default_factory=dict
    )  # original rank, and in how many cases its shares were checked
    wrong: tuple[WrongShare, ...] = ()
    repeatable: bool | None = None  # equal, inexact inputs give bitwise equal results
    sizes: tuple[SizeResult, ...] = ()
    stopped_at_bytes: int | None = None  # first size that no longer fit the time or memory
    short_of: Literal["time", "memory"] | None = None


class AxisGroup(Frozen):
    """The group of one rank on a mesh axis, of two or more ranks, and the results of that axis's collectives."""

    axis: str
    members: tuple[int, ...]  # original ranks, in the order of the group
    untested: dict[str, str] = Field(default_factory=dict)  # collective, and why it was not called or not timed
    sources: dict[int, int] = Field(default_factory=dict)  # as in CollectiveFact
    wrong: tuple[WrongShare, ...] = ()
    sizes: dict[str, SizeResult] = Field(default_factory=dict)  # by collective; all groups of the axis ran at once


class MeshFact(Fact):
    """The groups of one rank in the mesh that it was given. Empty if ranks were given different meshes."""

    KIND: ClassVar[str] = "mesh/1"

    mesh: tuple[Axis, ...]
    made: bool = False  # all ranks were given the same mesh and made its groups
    groups: tuple[AxisGroup, ...] = ()


_GbPerS = Annotated[float, Field(gt=0)]


class PairResult(Frozen):
    """The exchanges of one rank with a peer (original rank). ``wrong_bytes`` counts wrong bytes received."""

    peer: int
    wrong_bytes: int
    latency_us: float  # median of exchanges of 4 bytes, both ways at once
    bandwidth_gb_per_s: _GbPerS  # best exchange: rate in each direction, both at once
    size_bytes: int
    received_gb_per_s: _GbPerS | None = None  # best from the peer to this rank; None in older recordings
    least_gb_per_s: _GbPerS | None = None  # lowest of the same, without the first exchange: shows the scatter
    measured_again: bool = False  # because it was slow; rates and latency are the better ones
    queued_share: float = 0.0  # share of the one-way time that this rank's threads were ready but had no processor
    alone_gb_per_s: _GbPerS | None = None  # the exchange while no other pair moved data, …
    together_gb_per_s: _GbPerS | None = None  # … and while all pairs of a round did


class P2pFact(Fact):
    """The exchanges of one rank with its peers."""

    KIND: ClassVar[str] = "p2p/1"

    pairs: tuple[PairResult, ...]
    skipped: tuple[int, ...] = ()  # peers of pairs that hung in an earlier trial
    not_measured: int = 0  # pairs of this world that were skipped because time was short, …
    not_alone: int = 0  # … and pairs of the measured rounds that were not measured alone


class Rate(Frozen):
    """Repetitions of one measurement, in the unit that the fact's field names."""

    median: float
    least: float
    most: float
    repetitions: int


class GpuLoad(Frozen):
    """The GPU under load, as reported by the driver. None: not reported. ``reason``: why there are no samples."""

    looks: int = 0  # number of samples during the matrix products
    reason: str | None = None
    mig_enabled: bool | None = None
    confidential: bool | None = None
    sm_clock_mhz: int | None = None  # median during the matrix products
    sm_clock_max_mhz: int | None = None
    clock_events: dict[str, float] = Field(default_factory=dict)  # share of those samples with each event in force
    temperature_c: int | None = None  # highest
    power_w: float | None = None  # highest
    power_limit_w: float | None = None
    pcie_generation: int | None = None  # highest seen in any phase
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


class GpuSpeedFact(Fact):
    """The copy and matrix speed of one rank's GPU, and its state during the measurements."""

    KIND: ClassVar[str] = "gpu-speed/1"

    device: str
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    memory_total_bytes: int = 0
    memory_free_bytes: int = 0  # before the measurements, with CUDA and NCCL of this rank loaded
    memory_allowed_bytes: int = 0
    copy_gb_per_s: Rate | None = None  # within the GPU's memory, bytes read and bytes written
    copy_bytes: int = 0
    matmul_tflop_per_s: Rate | None = None
    matmul_dtype: str = ""
    matmul_size: int = 0  # rows and columns
    host_to_device_gb_per_s: Rate | None = None  # from pinned memory
    device_to_host_gb_per_s: Rate | None = None
    host_copy_bytes: int = 0
    not_measured: dict[str, str] = Field(default_factory=dict)  # measurement, and why
    load: GpuLoad = GpuLoad()


class SameProductsFact(Fact):
    """Checksums of repeated products of the same matrices on one rank: sums of their bits in hexadecimal.

    No addition in a product is rounded, so every order of additions and every library gives the same result.
    """

    KIND: ClassVar[str] = "same-products/1"

    device: str
    gpu_uuid: str | None = None
    alike: dict[str, str]  # type and model of device; ranks with equal values must give equal sums
    products: int
    seconds: float
    exact: tuple[str, ...]  # most frequent sum of each pair of matrices
    differing: int = 0  # products that differ from the most frequent sum of their pair
    first_differing: int | None = None  # its number, counted from 0


class TrialMeasurement(Fact):
    """The result of one rank in a trial. No rate if the trial only tested forming a group."""

    KIND: ClassVar[str] = "shown/1"

    bytes_per_s: float | None = None
    wrong: int = 0  # elements or bytes of a result
    unread: tuple[str, ...] = ()  # settings that NCCL's log does not show as read


class NcclDiagnostic(Frozen):
    """A result of NCCL's diagnostics."""

    ok: bool  # [OK]; otherwise [INFO]: NCCL found a fault or could not test
    text: str  # NCCL's text without the communicator's address
    ranks: tuple[int, int] | None = None  # ranks of the source and target GPUs, for a direct path
    path: str = ""  # kind of this path in NCCL's topology: "NVL"


class NcclDiagnosticsFact(Fact):
    """The output of NCCL's diagnostics on one rank, or on all ranks if their trial did not end."""

    KIND: ClassVar[str] = "nccl-diagnostics/1"

    results: tuple[NcclDiagnostic, ...] = ()


class GroupTest(Frozen):
    """A test of some nodes: new ranks form a group, reduce numbers with a known sum, and are timed."""

    round: int  # counts from 0; tests of one round run at once and share no node
    nodes: tuple[int, ...]  # node ranks
    #: ``lost``: a node stopped responding during it; ``unknown``: inconclusive, see ``reason``.
    outcome: Literal["passed", "failed", "hung", "wrong", "lost", "unknown"]
    bytes_per_s: float | None = None  # of the slowest rank, if the test passed
    reason: str = ""  # first message of a rank that failed on its own
    lost_nodes: tuple[int, ...] = ()  # node ranks that stopped responding during it
    at_s: float = 0.0  # start, in seconds after the first test
    duration_s: float = 0.0


class IsolationFact(Fact):
    """The tests of groups of nodes in which a run searched for faulty nodes."""

    KIND: ClassVar[str] = "isolation/1"

    tests: tuple[GroupTest, ...] = ()  # in the order of their rounds
    stopped: str = ""  # why it stopped before it was finished, or empty


class RepeatsFact(Fact):
    """The repeated tests of all nodes."""

    KIND: ClassVar[str] = "repeats/1"

    tests: tuple[GroupTest, ...] = ()  # each in a separate round, in the order they ran
    stopped: str = ""  # why there are fewer tests than requested, or empty


class Sample(Frozen):
    """The speed of one rank at a moment when no more ranks of its machine worked than it has cores."""

    at_s: float  # seconds since the check began on this rank
    products_per_s: float  # small matrix products per second: of processor time, or on a GPU of elapsed time
    taken_share: float  # share of a spinning loop's time when it did not run
    longest_gap_s: float  # of that loop
    waited_share: float | None = None  # share of that time when it was ready and waited for a CPU; None: unknown
    throttled_share: float | None = None  # … when a CPU quota stopped its control group
    read_bytes_per_s: dict[str, float] = Field(
        default_factory=dict
    )  # from --data: "large files", "small pieces", "four workers"
    exchanged_gb_per_s: dict[int, float] = Field(default_factory=dict)  # rate each way, by neighbor's original rank


class StragglersFact(Fact):
    """The samples of one rank, and possible reasons why it is slow."""

    KIND: ClassVar[str] = "stragglers/1"

    device: str  # "cpu" or "cuda:N"
    model: str  # of the GPU or CPU: only equal models are compared
    machine: str = ""  # id of the booted kernel: ranks of several hosts may share a machine
    cpus: tuple[int, ...] = ()  # CPUs that it may run on
    samples: tuple[Sample, ...] = ()
    quota_cpus: float | None = None  # limit of its control group: processors
    numa_nodes: tuple[str, ...] = ()  # of its CPUs: "node0"
    busiest: tuple[BusyProcess, ...] = ()  # other processes on its host; searched only if it waited for a CPU
    data_problem: str = ""  # why --data could not be read
