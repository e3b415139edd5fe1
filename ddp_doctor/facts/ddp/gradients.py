"""The fact of the check gradient_sync on one rank."""

from typing import ClassVar

from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class Phase(Frozen):
    """The gradients after one backward: the wrong gradients, and the largest error of all."""

    off: tuple[gradient_code.OffGradient, ...] = ()
    max_abs_error: float = 0.0


class GradientSync(Fact):
    """The gradients of one rank after a step, inside ``no_sync()``, and after the next step."""

    KIND: ClassVar[str] = "gradient_sync/1"

    world_size: int
    parameters: int
    elements: int
    bucket_cap_bytes: int
    step: Phase
    no_sync: Phase
    resync: Phase
    ddp_construct_s: float
    forward_s: float
    backward_s: float  # of the last step: the buckets' all-reduces overlap with it
    all_gather_s: float
