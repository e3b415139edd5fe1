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


class Unit(Frozen):
    """Modules that are sharded as one, of which ``count`` have the same class and size."""

    name: str  # the qualified name of the first one
    kind: str  # its class
    count: int
    bytes: int  # of the parameters of one of them, unsharded


class FitFact(Fact):
    """The estimates of a model's memory, and what they were made of.

    ``stopped`` is what the user's code was asked to do when it failed, and ``trouble`` how; None where it did not.
    """

    KIND: ClassVar[str] = "fit/1"

    model: str
    precision: Precision
    device: str  # whose optimizer is counted: on "cuda" it handles all parameters at once, on "cpu" one by one
    ranks: int
    ranks_per_node: int
    batch: int | None = None  # samples of a rank's batch; None where there is no batch
    stopped: str | None = None
    trouble: Trouble | None = None
    elements: int = 0  # of all parameters
    trainable_elements: int = 0
    parameter_bytes: int = 0
    optimizer: str = ""  # its class
    optimizer_given: bool = False  # by the factory
    units: tuple[Unit, ...] = ()  # that are sharded; none: the model as a whole
    units_given: bool = False  # by the factory
    largest: Unit | None = None  # the largest single layer
    left_out: tuple[str, ...] = ()  # of the estimates, each with why: "activations: my::op has no …"
    estimates: tuple[Estimate, ...] = ()
    cpu_s: float = 0.0  # processor time that it took


class FitMeasuredFact(Fact):
    """Some steps of the model under one strategy on one rank."""

    KIND: ClassVar[str] = "fit_measured/1"

    strategy: str  # a row of knowledge/ddp/strategies.py
    checkpointing: bool
    device: str
    peak_bytes: int  # the most that tensors took, from before the model is made to the end of the last step
    steps_s: tuple[float, ...] = ()  # seconds of each whole step
    out_of_memory: bool = False  # of the device, before the last step ended
