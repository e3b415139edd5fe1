"""What the checks of gradients record of one rank: their sums, and what came of the modes of DDP."""

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
    """A gradient that is off after a step, which is counted from 1."""

    step: int
    gradient: gradient_code.OffGradient


class ScaledStep(Frozen):
    """One step of a GradScaler of this rank's own; ``scale`` is that after it."""

    infinite: bool  # the last rank's gradient was made infinite
    stepped: bool
    scale: float


class Mode(Frozen):
    """What was seen of one mode on this rank.

    ``error`` is what DDP raised here and ``not_looked`` why the mode could not be tested, ``refused`` that torch
    itself has ruled it out for these ranks, so that no job can use it.
    """

    name: str
    tolerance: float = 0.0  # the relative error that the format allows
    off: tuple[OffInMode, ...] = ()
    scaled: tuple[ScaledStep, ...] = ()
    error: str | None = None
    not_looked: str | None = None
    refused: bool = False


class Share(Frozen):
    """The indices that a DistributedSampler gave this rank in one epoch."""

    data_length: int
    drop_last: bool
    epoch: int
    indices: tuple[int, ...]


class DdpModes(Fact):
    """What came of each mode on one rank, its shares of data sets, and how it was seeded.

    ``start_up_files`` are the files of sitecustomize and usercustomize, where Python ran any.
    """

    KIND: ClassVar[str] = "ddp_modes/1"

    world_size: int
    modes: tuple[Mode, ...] = ()
    shares: tuple[Share, ...] = ()
    torch_seed: int = -1  # as the probe found it
    start_up_files: tuple[str, ...] = ()
