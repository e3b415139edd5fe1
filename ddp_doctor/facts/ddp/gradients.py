"""What the checks of gradients record of one rank: their sums, the modes of DDP, mixed precision."""

from typing import ClassVar

from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class Phase(Frozen):
    """The gradients after one backward: those that are off, and the greatest error of all."""

    off: tuple[gradient_code.OffGradient, ...] = ()
    max_abs_error: float = 0.0


class GradientSync(Fact):
    """What one rank's gradients were after a step, inside ``no_sync()``, and after the next step."""

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


class OffInMode(Frozen):
    """A gradient that is off after a step (counted from 1), and its bucket, None where DDP does not say."""

    step: int
    bucket: int | None
    gradient: gradient_code.OffGradient


class Mode(Frozen):
    """What was seen of one mode on this rank.

    ``error`` is what DDP raised here and ``not_looked`` why the mode could not be tested, ``refused`` that torch
    itself has ruled it out for these ranks, so that no job can use it. ``unused`` are the
    parameters that the rank's branch leaves out, where ranks leave out different ones and DDP did not know
    to expect it: the backward, which would hang, was then not dared. ``not_views`` are the gradients that
    are no part of their bucket where they must be.
    """

    name: str
    tolerance: float = 0.0  # the relative error that the format allows
    off: tuple[OffInMode, ...] = ()
    error: str | None = None
    not_looked: str | None = None
    refused: bool = False
    unused: tuple[str, ...] | None = None
    not_views: tuple[str, ...] = ()


class GradientModes(Fact):
    """What one rank's gradients were in each mode."""

    KIND: ClassVar[str] = "gradient_modes/1"

    world_size: int
    parameters: int
    modes: tuple[Mode, ...]


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
