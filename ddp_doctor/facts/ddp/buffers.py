"""What of one rank's model state is off, as the probe writes it and the rules read it."""

from typing import ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class OffState(Frozen):
    """The worst element of a parameter or buffer that is not what it must be.

    ``from_rank`` is the original rank whose value it holds, None where it is no rank's; ``got`` is None
    where it is not a finite number.
    """

    name: str
    expected: float
    got: float | None
    from_rank: int | None = None


class BroadcastCost(Frozen):
    """Median seconds of a forward with the broadcast of ``size_bytes`` of buffers and of one without."""

    on_s: float
    off_s: float
    size_bytes: int


class Buffers(Fact):
    """What of one rank's model state is off. ``source_rank`` is the rank that DDP broadcasts from.

    ``parameters_off`` after wrapping, ``buffers_off`` after two forwards, ``batch_norm_off`` after the first;
    ``sync_batch_norm_off`` is None where it could not be tested, for ``sync_batch_norm_reason``.
    ``normalised_off`` and ``sync_normalised_off``: what BatchNorm and SyncBatchNorm gave for the batch.
    From level standard on: ``kept_off`` with broadcasting off, ``reassigned_off`` of a buffer that got a new
    tensor after wrapping, and the broadcast's cost. None is not looked at.
    """

    KIND: ClassVar[str] = "buffers/1"

    world_size: int
    source_rank: int
    parameters_off: tuple[OffState, ...] = ()
    buffers_off: tuple[OffState, ...] = ()
    batch_norm_off: tuple[OffState, ...] = ()
    sync_batch_norm_off: tuple[OffState, ...] | None = None
    sync_batch_norm_reason: str | None = None
    normalised_off: tuple[OffState, ...] | None = None
    sync_normalised_off: tuple[OffState, ...] | None = None
    kept_off: tuple[OffState, ...] | None = None
    reassigned_off: tuple[OffState, ...] | None = None
    cost: BroadcastCost | None = None
