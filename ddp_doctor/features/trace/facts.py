"""The contents of a profiler's trace for one rank in one window: steps and collectives, without events.

Times are microseconds since ``begin_us`` by the rank's own clock; docs/explanation/traces.md
defines the parts of a step.
"""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: Begin and end.
Interval = tuple[float, float]


class Gap(Frozen):
    """The longest idle time in a step; on a GPU trace, without kernels and without operators on the host."""

    begin_us: float
    end_us: float
    inside: tuple[str, ...] = ()  # the user's annotations and, if stacks are recorded, functions; outermost first


class SyncPoint(Frozen):
    """A call in a step that makes the host wait for the GPU, or reads a number from it."""

    name: str  # aten::item, cudaStreamSynchronize …
    count: int  # in the step
    wait_us: float  # all of them
    where: str = ""  # FILE(LINE): FUNCTION of the user's code, if stacks are recorded


class TraceStep(Frozen):
    """A step of the training loop. ``compute_us`` to ``host_us`` add up to its length."""

    number: int  # N of ProfilerStep#N, otherwise counted
    begin_us: float
    end_us: float
    compute_us: float = 0.0  # a kernel runs (CPU trace: an operator of the main thread), except the optimizer's
    optimizer_us: float = 0.0  # inside Optimizer.step
    loading_us: float = 0.0  # nothing runs, and the main thread waits for its loader
    exposed_us: float = 0.0  # only communication runs: waiting and transfer
    other_us: float = 0.0  # only copies to and from the GPU
    host_us: float = 0.0  # everything else: Python, launches, synchronization, pauses
    hidden_us: float = 0.0  # communication during computing, already counted as compute
    exposed: tuple[Interval, ...] = ()  # intervals with only communication; at most the longest hundred
    forward_us: float = 0.0  # of the host, all passes
    backward_us: float = 0.0  # … from the first to the last autograd node
    #: In the last backward: when the last gradient is ready, and when the first gradients are sent to be averaged.
    backward_end_us: float | None = None
    first_reduce_us: float | None = None
    loader_us: float = 0.0  # the main thread in __next__ of its loader, whatever else runs
    optimizer_host_us: float = 0.0  # the main thread in Optimizer.step, whatever else runs
    passes: int = 0  # forwards of the model
    updates: int = 0  # Optimizer.step
    ops: int = 0  # operators of the main thread and autograd's threads, without those inside other operators
    op_us: float = 0.0  # … their total duration
    kernels: int = 0  # on the GPU, without communication
    optimizer_kernels: int = 0  # … of Optimizer.step; on a CPU trace its operators
    launch_us: float = 0.0  # the host in calls that launch kernels
    batch: tuple[int, ...] = ()  # size of the first input of the model that has two dimensions or more
    reduced: int = 0  # gradients that were put into buckets
    copied_back: int = 0  # gradients that were copied back out of buckets
    copied_back_us: float = 0.0  # … the host's time for that
    averaged: int = 0  # backward passes that averaged gradients
    buffers_us: float = 0.0  # sending the model's buffers before forward: packing, broadcast, copying back
    searched_us: float | None = None  # the search for unused parameters; None: DDP did not search
    detached: int = 0  # tensors that the main thread detached outside of forward: state_dict does it with each
    gap: Gap | None = None
    syncs: tuple[SyncPoint, ...] = ()
    pageable_us: float = 0.0  # copies from pageable memory to the GPU
    pageable: int = 0  # … how many
    pinned_blocking: int = 0  # copies from pinned memory for which the host waited

    @property
    def length_us(self) -> float:
        """The duration."""
        return self.end_us - self.begin_us

    @property
    def gap_us(self) -> float:
        """The duration of its longest gap."""
        return self.gap.end_us - self.gap.begin_us if self.gap else 0.0


class TraceCall(Frozen):
    """A collective of this rank."""

    kind: str  # all_reduce, broadcast, all_gather, reduce_scatter, barrier … ; "collective" if unknown
    begin_us: float  # on a GPU, the kernel's start, when this rank has arrived; otherwise, when a thread started it
    end_us: float
    called_us: float | None = None  # when the host called it
    step: int | None = None  # index into the fact's steps, by the time of the call; None outside of all steps
    group: str = ""  # the name of its process group; "" if unknown
    seq: int | None = None  # its number in the group, if known
    ranks: int | None = None  # of the group, if known
    size_bytes: int | None = None  # this rank's input
    dtype: str = ""  # float, half, bfloat16, int, long …
    during: Literal["forward", "backward", ""] = ""  # the main or an autograd thread's activity at the call
    averages: bool = False  # for gradients: it was called while a gradient was accumulated
    exposed_us: float = 0.0  # the part of it in which only communication ran


class TraceFact(Fact):
    """The trace of one rank in one window."""

    KIND: ClassVar[str] = "trace/1"

    file: str  # as it was given, or ARCHIVE:MEMBER
    rank: int | None = None
    world_size: int | None = None  # of the job
    host: str = ""
    device: Literal["cpu", "gpu"] = "cpu"  # where the parts of a step are measured
    gpu: str = ""  # its model
    begin_us: float = 0.0  # Unix time
    steps: tuple[TraceStep, ...] = ()  # the analyzed steps
    left_out: int = 0  # steps before them: the profiler starts in the first, and DDP may rebuild its buckets
    marked_by: Literal["profiler", "optimizer", ""] = ""  # the events that mark steps: ProfilerStep, Optimizer.step
    calls: tuple[TraceCall, ...] = ()  # the collectives in these steps, in the order of their calls
    groups: dict[str, int] = Field(default_factory=dict)  # the ranks of each process group that the header lists
    is_ddp: bool = False  # whether DistributedDataParallel appears in it
    hook: bool = False  # whether gradients go through a communication hook
    loader: Literal["none", "main", "workers"] = "none"  # thread that loads data: none seen, main, workers
    optimizer: str = ""  # SGD, AdamW …
    damaged: int = 0  # events that could not be read
    cut: bool = False  # whether the file is truncated
    processes: int = 1  # processes with their own steps: more than one means a merged file of several ranks
