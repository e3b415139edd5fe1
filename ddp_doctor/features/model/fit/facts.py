"""The estimated memory of one rank of the user's model under each strategy."""

from typing import ClassVar, Literal

from ddp_doctor.features.model.user_model.facts import Trouble
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: fp32: the model unchanged; bf16: the model converted; amp: computation in bfloat16, parameters in float32.
Precision = Literal["fp32", "bf16", "amp"]
#: The model is made and wrapped; then each step has the other three moments.
Moment = Literal["wrap", "forward", "backward", "optimizer"]


class Estimate(Frozen):
    """The peak memory of a rank under one strategy, in bytes, split by use.

    It is the peak of a step whose optimizer already has its state.
    """

    strategy: str  # a row of knowledge/ddp/strategies.py
    checkpointing: bool  # activations are recomputed in the backward of each unit
    moment: Moment  # of the peak
    parameters: int = 0  # that the rank keeps, and the model's buffers
    gradients: int = 0  # that the rank keeps, without views into buckets
    optimizer: int = 0  # its state
    buckets: int = 0  # of DistributedDataParallel
    activations: int = 0  # tensors that the forward keeps for the backward, and the batch
    unsharded: int = 0  # full parameters and gradients of the units in use, and the buffers that gather and reduce them
    temporaries: int = 0  # everything else at that moment
    host_bytes: int = 0  # offloaded to host memory
    pass_bytes: int = 0  # the peak of only forward and backward, which a larger batch increases
    sample_bytes: int = 0  # added to pass_bytes per extra sample, measured with 16 times the batch; 0 without a batch
    sent_bytes: int = 0  # sent by a rank in one step

    @property
    def peak_bytes(self) -> int:
        """The sum of the parts on the device."""
        parts = (self.parameters, self.gradients, self.optimizer, self.buckets)
        return sum(parts) + self.activations + self.unsharded + self.temporaries


class FitFact(Fact):
    """The memory estimates of a model, and their inputs."""

    KIND: ClassVar[str] = "fit/1"

    model: str
    precision: Precision
    ranks: int
    batch: int | None = None  # samples per rank; None if there is no batch of tensors
    tokens: int | None = None  # per sample, for models of transformers
    trouble: Trouble | None = None  # how the user's code failed
    optimizer: str = ""  # its class: "AdamW (none was given)"
    units: str = ""  # units that are sharded if the factory names none: "24 Block"
    largest: str = ""  # the layer with the most parameters …
    largest_bytes: int = 0  # … and their size
    left_out: tuple[str, ...] = ()  # estimates that are missing, and why: "activations: my::op has no …"
    estimates: tuple[Estimate, ...] = ()


class FitMeasuredFact(Fact):
    """A measurement of a few steps of the model under one strategy on one rank."""

    KIND: ClassVar[str] = "fit_measured/1"

    strategy: str  # a row of knowledge/ddp/strategies.py
    checkpointing: bool
    peak_bytes: int  # peak memory of tensors, from before the model is made to the end of the last step
    steps_s: tuple[float, ...] = ()  # seconds of each step
    out_of_memory: bool = False  # on the device, before the last step ended
