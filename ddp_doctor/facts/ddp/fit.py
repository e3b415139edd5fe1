"""What a rank of the user's model needs of memory under each strategy, as it was estimated."""

from typing import ClassVar, Literal

from ddp_doctor.facts.ddp.user_model import Trouble
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: fp32: as the model is; bf16: the model converted; amp: bfloat16 to compute, the parameters in float32.
Precision = Literal["fp32", "bf16", "amp"]
#: of a job: the model is made and wrapped, then each step has these three.
Moment = Literal["wrap", "forward", "backward", "optimizer"]


class Estimate(Frozen):
    """The peak of a rank's memory under one strategy, in bytes: what is there at the moment at which it is highest.

    A step is one in which the optimizer has its state already.
    """

    strategy: str  # a row of knowledge/ddp/strategies.py
    checkpointing: bool  # activations are computed again in the backward of each unit
    moment: Moment  # of the peak
    parameters: int = 0  # those the rank keeps, and buffers of the model
    gradients: int = 0  # those the rank keeps; views into buckets are none
    optimizer: int = 0  # its state
    buckets: int = 0  # of DistributedDataParallel
    activations: int = 0  # what the forward left for the backward, and the batch
    unsharded: int = 0  # whole parameters and gradients of the units in use, with what gathers and reduces them
    temporaries: int = 0  # all else that is there at that moment
    host_bytes: int = 0  # in the host's memory instead: what is offloaded
    pass_bytes: int = 0  # the peak of forward and backward alone, from which a larger batch grows
    sample_bytes: int = 0  # what a sample more adds to pass_bytes, of sixteen times the batch; 0 where there is none
    sent_bytes: int = 0  # that a rank sends in one step

    @property
    def peak_bytes(self) -> int:
        """The sum of the parts on the device."""
        parts = (self.parameters, self.gradients, self.optimizer, self.buckets)
        return sum(parts) + self.activations + self.unsharded + self.temporaries


class FitFact(Fact):
    """The estimates of a model's memory, and what they were made of."""

    KIND: ClassVar[str] = "fit/1"

    model: str
    precision: Precision
    ranks: int
    batch: int | None = None  # samples of a rank's batch; None where there is no batch of tensors
    tokens: int | None = None  # per sample, for models of transformers
    trouble: Trouble | None = None  # how the user's code failed
    optimizer: str = ""  # its class: "AdamW (none was given)"
    units: str = ""  # that are sharded, where the factory names none: "24 Block"
    largest: str = ""  # the single layer with most parameters of its own …
    largest_bytes: int = 0  # … and theirs
    left_out: tuple[str, ...] = ()  # of the estimates, each with why: "activations: my::op has no …"
    estimates: tuple[Estimate, ...] = ()


class FitMeasuredFact(Fact):
    """Some steps of the model under one strategy on one rank."""

    KIND: ClassVar[str] = "fit_measured/1"

    strategy: str  # a row of knowledge/ddp/strategies.py
    checkpointing: bool
    peak_bytes: int  # the most that tensors took, from before the model is made to the end of the last step
    steps_s: tuple[float, ...] = ()  # seconds of each whole step
    out_of_memory: bool = False  # of the device, before the last step ended
