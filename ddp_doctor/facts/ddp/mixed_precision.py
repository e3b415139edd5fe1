"""What mixed precision did on one rank, as the probe writes it and the rules read it."""

from typing import ClassVar

from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class ScaledStep(Frozen):
    """One step of the GradScaler. ``bits`` is a checksum of the parameter afterwards."""

    infinite: bool  # one rank's gradient was made infinite
    stepped: bool
    scale: float  # after update()
    bits: int


class Scaled(Frozen):
    """Steps under autocast with a GradScaler of this rank's own.

    ``off`` is the unscaled gradient of the first step where it is not the mean, within ``tolerance``;
    ``infinite_rank`` is the original rank whose gradient is made infinite in one of the steps.
    """

    dtype: str
    infinite_rank: int
    scale: float = 0.0  # at the beginning
    tolerance: float = 0.0
    off: gradient_code.OffGradient | None = None
    steps: tuple[ScaledStep, ...] = ()
    not_looked: str | None = None


class Half(Frozen):
    """Gradients of a model in half precision.

    ``off`` is a coded gradient that is not the mean within ``tolerance``, ``relative_error`` how far the
    worst element was off, and ``large_mean`` what came of ``large`` on every rank, None if not finite.
    """

    dtype: str
    tolerance: float = 0.0
    off: gradient_code.OffGradient | None = None
    relative_error: float | None = None
    large: float = 0.0
    large_mean: float | None = None
    not_looked: str | None = None


class MixedPrecision(Fact):
    """What one rank's scaled steps and half-precision gradients were."""

    KIND: ClassVar[str] = "mixed_precision/1"

    world_size: int
    scaled: tuple[Scaled, ...] = ()
    halves: tuple[Half, ...] = ()
