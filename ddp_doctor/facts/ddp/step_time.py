"""Durations of one rank's training steps. Written by the probe, read by the rules."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge.ddp.buckets import Curve
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import TraceAdvice


class Round(Frozen):
    """A step of each kind, begun by all ranks together. Seconds of this rank, each the mean of a few steps."""

    compute_s: float  # forward and backward without synchronization, all ranks at the same time
    step_s: float  # the same model in DDP
    communicate_s: float  # the all-reduces of its buckets, without overlap
    again_s: float  # compute_s a second time; the difference is noise of the machine
    alone_s: float | None = None  # on the first rank, while the other ranks wait
    alone_larger_s: float | None = None  # the same with ``larger`` times the batch


class BucketTrial(Frozen):
    """The steps with a given bucket size."""

    cap_mib: float
    predicted_s: float
    buckets_bytes: tuple[int, ...] = ()  # as DDP built them; empty if it does not report them
    step_s: tuple[float, ...] = ()  # one per round, of this rank


class Buckets(Frozen):
    """Predictions for several bucket sizes, and measurements of the best and the default."""

    batch: int | None
    compute_s: float  # forward and backward, on the predicting rank
    predicted_s: dict[float, float]  # by the cap in MiB
    trials: tuple[BucketTrial, ...] = ()  # default first; empty if no size promised enough


class Profile(Frozen):
    """A step as torch.profiler sees it on this rank."""

    step_s: float
    collectives_s: float  # time with at least one collective running
    covered_s: float  # the part of it with an operation of the model also running
    operations: dict[str, float] = Field(default_factory=dict)  # the most expensive ones, by their own seconds


class ArgumentTrial(Frozen):
    """Alternating steps with one DDP argument changed as a trace advises, and with the job's arguments."""

    advice: TraceAdvice
    without_s: tuple[float, ...] = ()  # with the job's arguments, one per round, of this rank
    with_s: tuple[float, ...] = ()  # … with the change
    not_tried: str = ""  # why it was not tried


class StepTimeFact(Fact):
    """The training steps of one rank."""

    KIND: ClassVar[str] = "step-time/1"

    ranks: int
    device: str
    model: str = ""  # the user's model; "" for ddp-doctor's own
    parameters: int
    gradient_bytes: int
    batch: int | None = None  # samples per rank, if known
    same_work: bool = True  # all ranks compute the same; batches of a user's model may differ in shape
    larger: int = 1
    threads: int = 1  # CPU threads that torch uses
    cpus: tuple[int, ...] = ()  # CPUs that this rank may run on
    on_cpu_share: float | None = None  # share of the compute time; None on a GPU
    iterations: int
    rounds: tuple[Round, ...]
    curve: Curve
    buckets: Buckets | None = None
    arguments: tuple[ArgumentTrial, ...] = ()  # with --from-trace
    profile: Profile | None = None
    not_measured: dict[str, str] = Field(default_factory=dict)  # measurement, and why
