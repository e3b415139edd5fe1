"""What one rank's training steps took, as the probe writes it and the rules read it."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge.ddp.buckets import Curve
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import TraceAdvice


class Round(Frozen):
    """One step of each kind, all ranks having begun together; seconds of this rank, each the mean of a few."""

    compute_s: float  # forward and backward without synchronization, all ranks at the same time
    step_s: float  # the same model in DDP
    communicate_s: float  # the all-reduces of its buckets, with nothing to hide behind
    again_s: float  # compute_s a second time: what it differs by is the machine's noise
    alone_s: float | None = None  # on the first rank, while the others wait
    alone_larger_s: float | None = None  # the same with ``larger`` times the batch


class BucketTrial(Frozen):
    """Steps with one bucket size."""

    cap_mib: float
    predicted_s: float
    buckets_bytes: tuple[int, ...] = ()  # as DDP built them; empty where it does not say
    step_s: tuple[float, ...] = ()  # one per round, of this rank


class Buckets(Frozen):
    """Bucket sizes: what was predicted of several, and what was measured of the best and the default."""

    batch: int | None
    compute_s: float  # forward and backward, of the rank that predicted
    predicted_s: dict[float, float]  # by the cap in MiB
    trials: tuple[BucketTrial, ...] = ()  # default first; none where no size promised enough


class Profile(Frozen):
    """A step as torch.profiler sees it on this rank."""

    step_s: float
    collectives_s: float  # time in which at least one collective ran
    covered_s: float  # of that, the time in which an operation of the model ran too
    operations: dict[str, float] = Field(default_factory=dict)  # the dearest, by their own seconds


class ArgumentTrial(Frozen):
    """Steps with one argument of DDP changed as a trace advises, and with all of them as the job has them, in turns."""

    advice: TraceAdvice
    without_s: tuple[float, ...] = ()  # as the job has them, one per round, of this rank
    with_s: tuple[float, ...] = ()  # … changed
    not_tried: str = ""  # why not


class StepTimeFact(Fact):
    """One rank's steps."""

    KIND: ClassVar[str] = "step-time/1"

    ranks: int
    device: str
    model: str = ""  # the user's own; "" is the doctor's
    parameters: int
    gradient_bytes: int
    batch: int | None = None  # samples on each rank, where they are known
    same_work: bool = True  # every rank computes the same; the user's batches may be of different shapes
    larger: int = 1
    threads: int = 1  # that torch computes with
    cpus: tuple[int, ...] = ()  # on which this rank may run
    on_cpu_share: float | None = None  # of the time of computing; None on a GPU
    iterations: int
    rounds: tuple[Round, ...]
    curve: Curve
    buckets: Buckets | None = None
    arguments: tuple[ArgumentTrial, ...] = ()  # with --from-trace
    profile: Profile | None = None
    not_measured: dict[str, str] = Field(default_factory=dict)  # what, and why
