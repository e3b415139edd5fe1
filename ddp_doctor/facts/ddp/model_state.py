"""What the checks of a model's state record of one rank: when it is wrapped, its buffers, a checkpoint."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge.ddp.manifests import Manifested
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class InitialState(Fact):
    """What one rank's model is made of, and the fingerprints of its values.

    ``before`` and ``after`` wrapping: name -> 16 digits of a SHA-256 over the bits; both are empty where the
    ranks' models differ, for then it was not wrapped. ``source_rank`` is the rank that DDP broadcasts from.
    ``same_seed``: one fingerprint of a model made from a seed that all ranks share, and never wrapped.
    """

    KIND: ClassVar[str] = "initial-state/1"

    world_size: int
    source_rank: int
    model: Manifested
    before: dict[str, str] = Field(default_factory=dict)
    after: dict[str, str] = Field(default_factory=dict)
    same_seed: str = ""
    wrap_s: float | None = None
    wrap_without_sync_s: float | None = None  # None where this torch cannot wrap without the broadcast
    size_bytes: int = 0


class OffState(Frozen):
    """The worst element of a parameter or buffer that is not what it must be.

    ``from_rank`` is the original rank whose value it holds, None where it is no rank's; ``got`` is None
    where it is not a finite number.
    """

    name: str
    expected: float
    got: float | None
    from_rank: int | None = None


class Buffers(Fact):
    """What of one rank's model state is off. ``source_rank`` is the rank that DDP broadcasts from.

    ``parameters_off`` after wrapping, ``buffers_off`` after two forwards, ``batch_norm_off`` after the first;
    ``sync_batch_norm_off`` is None where it could not be tested, for ``sync_batch_norm_reason``.
    ``normalised_off`` and ``sync_normalised_off``: what BatchNorm and SyncBatchNorm gave for the batch.
    From level standard on: ``kept_off`` with broadcasting off, ``reassigned_off`` of a buffer that got a new tensor
    after wrapping. None is not looked at.
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


class Loaded(Frozen):
    """One look at the file. ``told`` is its SHA-256 as the rank that saved it read it back, ``read`` as this one did.

    ``size_bytes`` and ``read`` are None if the file was not there, and ``holds_version`` if torch could not load it or
    it is not what the first rank saves.
    """

    version: int
    told_bytes: int
    told: str
    size_bytes: int | None = None
    read: str | None = None
    seen_after_s: float = 0.0
    holds_version: int | None = None
    error: str | None = None


class Checkpoint(Fact):
    """What one rank read back of the file that group rank 0 saved twice."""

    KIND: ClassVar[str] = "checkpoint/1"

    world_size: int
    group_rank: int
    folder: str
    working_directory: str
    loads: tuple[Loaded, ...]
