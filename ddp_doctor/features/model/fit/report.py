"""The report of ``fit``: the memory that each strategy needs, which strategies fit, and which one to use."""

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.report import Report


class FitEstimate(Frozen):
    """The memory that a rank needs under one strategy, estimated and measured."""

    strategy: str  # as --strategy takes it: ddp, ddp-bucket-view, zero1, zero2, zero3, hsdp, zero3-offload
    words: str  # its name in words: "ZeRO-3: FSDP2"
    checkpointing: bool  # activations are recomputed in the backward
    moment: str  # the moment of the highest memory: wrap, forward, backward, optimizer
    parts: dict[str, int]  # bytes at that moment by use: parameters, gradients, optimizer, activations …
    peak_bytes: int  # their sum
    needed_bytes: int  # … or the measured peak, if higher, plus what CUDA's caching allocator keeps beyond it
    fits: bool | None  # null if no GPU memory is known, or a part of the estimate is missing
    batch: int | None  # samples in the largest batch of a rank that fits; null if unknown
    sent_bytes: int  # sent by a rank in one step
    host_bytes: int  # offloaded to host memory
    measured_bytes: int | None = None  # the highest peak of a rank in the steps of --measure
    measured_out_of_memory: bool = False  # … or that they ran out of it
    step_s: float | None = None  # seconds of the median of these steps, on the slowest rank


class FitReport(Report):
    """The report of ``fit --json``: the envelope, the memory that each strategy needs, and the recommended one."""

    memory_bytes: int | None = None  # of a GPU, compared with the estimates; null if unknown
    memory_of: str = ""  # whose memory that is: "the smallest of 8 GPUs"
    ranks: int = 0  # of the job that was estimated
    estimates: tuple[FitEstimate, ...] = ()  # of all strategies, with and without checkpointing
    advice: str = ""  # the recommended strategy, and why
