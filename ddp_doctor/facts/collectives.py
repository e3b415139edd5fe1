"""What the checks of collectives record, and trials of remedies."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ddp_doctor.facts.node.host import BusyProcess
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Axis


class ProcessGroupFact(Fact):
    """One rank's place in the process group."""

    KIND: ClassVar[str] = "process-group/1"

    backend: str  # what get_backend() says: "nccl" or "gloo"
    backend_impl: str | None = None  # the class behind it: "nccl", "nccl2", "nccl-legacy", "gloo", or another
    group_rank: int
    world_size: int
    init_s: float  # init_process_group
    first_collective_s: float  # creates the communicator on NCCL
    device: str
    bound_device: str | None = None  # the one that torch bound the group to
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    torch_version: str
    cuda_version: str | None = None
    nccl_available: bool
    gloo_available: bool
    pid: int


class TorchImport(Fact):
    """The import of torch, once per node. ``error`` is a traceback, ``stuck_at`` a Python stack.

    ``moving``: it still computed at its deadline, so it is slow, and whether it would have ended is not known.
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
    elements: int  # how many are wrong
    expected: float
    got: float  # the first wrong element
    alike: bool = False  # every wrong element is ``got``
    blamed: tuple[int, ...] = ()  # original ranks of which one's share is missing or doubled, throughout


class SizeResult(Frozen):
    """One message size. Times are of this rank; ``wrong`` counts elements."""

    size_bytes: int
    time_us: float  # median
    min_us: float
    max_us: float
    iterations: int
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int
    mean_us: float | None = None  # None in older recordings, as the rest
    p99_us: float | None = None  # the 99th percentile by nearest rank
    count: int | None = None  # elements of a rank's share, nccl-tests' column
    in_place: bool | None = None
    again: bool = False  # measured twice; this is the faster one
    group: str = ""  # of a part of the ranks: "within each node"


class AllReduceFact(Fact):
    """One rank's all-reduces."""

    KIND: ClassVar[str] = "allreduce/1"

    ranks: int
    tested: tuple[str, ...]  # "float32 sum", …
    wrong: tuple[Wrong, ...] = ()
    repeatable: bool
    sizes: tuple[SizeResult, ...] = ()
    stopped_at_bytes: int | None = None  # the first size that no longer fitted the time or memory
    short_of: Literal["time", "memory"] | None = None  # which of them; None in older recordings
    #: For each size from there on: seconds for all up to it, or bytes free on the host or on a rank's GPU.
    needs: tuple[float, ...] = ()
    measured_by: Literal["nccl-tests", "NCCL Inspector"] | None = None  # None: these ranks
    gpu_names: tuple[str, ...] = ()  # by rank, where others measured and say so
    nccl: str | None = None  # the release, where others measured and say so


class WrongShare(Frozen):
    """What is wrong with one share of one result on one rank, in one case."""

    case: str  # "float32 sum", "uint8, not contiguous"
    source: int | None = None  # the original rank that gave the share; None: all gave to it
    elements: int  # how many are wrong
    of: int
    expected: float
    got: float  # the first wrong element
    blamed: tuple[
        int, ...
    ] = ()  # original ranks of which one's contribution to a sum is missing or doubled, throughout


class CollectiveFact(Fact):
    """One rank's results of one collective."""

    KIND: ClassVar[str] = "collective/1"

    part: str  # a row of knowledge/collectives.py
    ranks: int
    tested: tuple[str, ...] = ()  # cases: "float32 sum"
    not_offered: dict[str, str] = Field(default_factory=dict)  # case, and what the backend says
    sources: dict[int, int] = Field(
        default_factory=dict
    )  # original rank, and in how many cases its shares were looked at
    wrong: tuple[WrongShare, ...] = ()
    repeatable: bool | None = None  # of equal, inexact inputs, bit for bit
    sizes: tuple[SizeResult, ...] = ()
    stopped_at_bytes: int | None = None  # the first size that no longer fitted the time or memory
    short_of: Literal["time", "memory"] | None = None


class AxisGroup(Frozen):
    """One rank's group of an axis of a mesh, of two ranks and more, and what the collectives of that axis brought."""

    axis: str
    members: tuple[int, ...]  # original ranks, in the order of the group
    untested: dict[str, str] = Field(default_factory=dict)  # collective, and why it was not called, or not timed
    sources: dict[int, int] = Field(default_factory=dict)  # as of CollectiveFact
    wrong: tuple[WrongShare, ...] = ()
    sizes: dict[str, SizeResult] = Field(default_factory=dict)  # by collective, all groups of the axis at once


class MeshFact(Fact):
    """One rank's part of the mesh that it was told; no groups where ranks were told different ones."""

    KIND: ClassVar[str] = "mesh/1"

    mesh: tuple[Axis, ...]
    made: bool = False  # whether all ranks were told the same, so that they made its groups
    groups: tuple[AxisGroup, ...] = ()


_GbPerS = Annotated[float, Field(gt=0)]


class PairResult(Frozen):
    """What one rank saw of one peer (original rank). ``wrong_bytes`` counts bytes received wrong."""

    peer: int
    wrong_bytes: int
    latency_us: float  # median of exchanges of 4 bytes, both ways at once
    bandwidth_gb_per_s: _GbPerS  # best of the exchanges, what went each way while both did
    size_bytes: int
    received_gb_per_s: _GbPerS | None = None  # best from the peer to this rank; None in older recordings
    least_gb_per_s: _GbPerS | None = None  # worst of the same, without the first exchange: what chance makes of it
    measured_again: bool = False  # because it was slow; all values are the better ones
    queued_share: float = 0.0  # of the time one way, how long this rank's threads were ready but had no processor
    alone_gb_per_s: _GbPerS | None = None  # the exchange while no other pair moved data, …
    together_gb_per_s: _GbPerS | None = None  # … and while all pairs of a round did


class P2pFact(Fact):
    """One rank's exchanges with its peers."""

    KIND: ClassVar[str] = "p2p/1"

    pairs: tuple[PairResult, ...]
    skipped: tuple[int, ...] = ()  # peers of pairs that hung in an earlier trial
    not_measured: int = 0  # pairs of this world that time left out, …
    not_alone: int = 0  # … and those of them that were not measured alone where the others were


class Rate(Frozen):
    """Repetitions of one measurement, in the unit that the fact's field names."""

    median: float
    least: float
    most: float
    repetitions: int


class GpuLoad(Frozen):
    """The GPU at work, by the driver; None where it says nothing. ``reason``: why there are no samples."""

    looks: int = 0  # during the matrix products
    reason: str | None = None
    mig_enabled: bool | None = None
    confidential: bool | None = None
    sm_clock_mhz: int | None = None  # median during the matrix products
    sm_clock_max_mhz: int | None = None
    clock_events: dict[str, float] = Field(default_factory=dict)  # share of those samples with each in force
    temperature_c: int | None = None  # highest
    power_w: float | None = None  # highest
    power_limit_w: float | None = None
    pcie_generation: int | None = None  # highest seen in any phase
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


class GpuSpeedFact(Fact):
    """One rank's GPU: how fast it copies and multiplies, and its state meanwhile."""

    KIND: ClassVar[str] = "gpu-speed/1"

    device: str
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    memory_total_bytes: int = 0
    memory_free_bytes: int = 0  # before the measurements, CUDA and NCCL of this rank being there
    memory_allowed_bytes: int = 0
    copy_gb_per_s: Rate | None = None  # within the GPU's memory, bytes read and bytes written
    copy_bytes: int = 0
    matmul_tflop_per_s: Rate | None = None
    matmul_dtype: str = ""
    matmul_size: int = 0  # rows and columns
    host_to_device_gb_per_s: Rate | None = None  # from pinned memory
    device_to_host_gb_per_s: Rate | None = None
    host_copy_bytes: int = 0
    not_measured: dict[str, str] = Field(default_factory=dict)  # what, and why
    load: GpuLoad = GpuLoad()


class SameProductsFact(Fact):
    """One rank's products of the same matrices, again and again, by a sum of the bits of each (hexadecimal).

    No addition on the way to a product is rounded, so that any order of them and any library gives the same.
    """

    KIND: ClassVar[str] = "same-products/1"

    device: str
    gpu_uuid: str | None = None
    alike: dict[str, str]  # type and model of device: ranks in which they are equal must give the same
    products: int
    seconds: float
    exact: tuple[str, ...]  # for each pair of matrices the most frequent sum
    differing: int = 0  # products unlike the most frequent of the same pair
    first_differing: int | None = None  # its number, from 0


class TrialMeasurement(Fact):
    """What one rank saw in one trial; no rate where only the meeting was tried."""

    KIND: ClassVar[str] = "shown/1"

    bytes_per_s: float | None = None
    wrong: int = 0  # elements or bytes of a result
    unread: tuple[str, ...] = ()  # settings that NCCL's log does not show as read


class NcclDiagnostic(Frozen):
    """One result of NCCL's own diagnostics."""

    ok: bool  # [OK]; else [INFO]: NCCL found something, or could not look
    text: str  # as NCCL has it, without the communicator's address
    ranks: tuple[int, int] | None = None  # from which rank's GPU to which, where a direct path is named
    path: str = ""  # the kind of this path by NCCL's topology: "NVL"


class NcclDiagnosticsFact(Fact):
    """What NCCL's own diagnostics printed on one rank; where their trial did not end, on all ranks."""

    KIND: ClassVar[str] = "nccl-diagnostics/1"

    results: tuple[NcclDiagnostic, ...] = ()


class GroupTest(Frozen):
    """One test of some nodes by themselves: fresh ranks meet, reduce numbers whose sum is known, and are timed."""

    round: int  # counts from 0; the tests of one round run at once, and have no node in common
    nodes: tuple[int, ...]  # node ranks
    #: ``lost``: a node fell silent in it; ``unknown``: nothing follows from it, as the reason says.
    outcome: Literal["passed", "failed", "hung", "wrong", "lost", "unknown"]
    bytes_per_s: float | None = None  # of the slowest rank, where it passed
    reason: str = ""  # the first message of a rank that failed by itself
    lost_nodes: tuple[int, ...] = ()  # node ranks that fell silent in it
    at_s: float = 0.0  # when it began, in seconds since the first
    duration_s: float = 0.0  # in seconds


class IsolationFact(Fact):
    """The tests of groups of nodes by which a run looked for the nodes to blame."""

    KIND: ClassVar[str] = "isolation/1"

    tests: tuple[GroupTest, ...] = ()  # in the order of their rounds
    stopped: str = ""  # why it ended before all was settled; empty where it did not


class RepeatsFact(Fact):
    """The tests of all nodes, again and again."""

    KIND: ClassVar[str] = "repeats/1"

    tests: tuple[GroupTest, ...] = ()  # each of a round of its own, in the order in which they ran
    stopped: str = ""  # why there are fewer than were asked for; empty where there are not


class Sample(Frozen):
    """One rank's speed for a moment in which no more ranks of its machine worked than it has cores."""

    at_s: float  # seconds since the check began on this rank
    products_per_s: float  # products of small matrices in a second: of processor time, or on a GPU of time
    taken_share: float  # of a spinning loop's time in which it did not run
    longest_gap_s: float  # of that loop
    waited_share: float | None = None  # of the loop's time in which it was ready and waited for a CPU; None: not known
    throttled_share: float | None = None  # … in which a CPU quota stopped its control group
    read_bytes_per_s: dict[str, float] = Field(
        default_factory=dict
    )  # of --data: "large files", "small pieces", "four workers"
    exchanged_gb_per_s: dict[int, float] = Field(default_factory=dict)  # each way, by original rank of the neighbor


class StragglersFact(Fact):
    """One rank's samples, and what may explain that it is slow."""

    KIND: ClassVar[str] = "stragglers/1"

    device: str  # "cpu" or "cuda:N"
    model: str  # of the GPU or CPU: only equal ones are compared
    machine: str = ""  # id of the booted kernel: ranks of several hosts may share a machine
    cpus: tuple[int, ...] = ()  # that it may run on
    samples: tuple[Sample, ...] = ()
    quota_cpus: float | None = None  # limit of its control group: processors
    numa_nodes: tuple[str, ...] = ()  # of its CPUs: "node0"
    busiest: tuple[BusyProcess, ...] = ()  # of others on its host, looked for where it waited for a CPU
    data_problem: str = ""  # why --data could not be read
