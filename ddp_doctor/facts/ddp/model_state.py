"""Facts of the checks of a model's state on one rank: its wrapping, its buffers, a checkpoint."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge.ddp.manifests import Manifested
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class InitialState(Fact):
    """The structure of one rank's model, and fingerprints of its values.

    ``before`` and ``after`` wrapping: name -> 16 digits of a SHA-256 over the bits. Both are empty if the ranks' models
    differ, because it was not wrapped then. ``source_rank`` is the rank that DDP broadcasts from. ``same_seed``: the
    fingerprint of an unwrapped model made from a seed that all ranks share.
    """

    KIND: ClassVar[str] = "initial-state/1"

    world_size: int
    source_rank: int
    model: Manifested
    before: dict[str, str] = Field(default_factory=dict)
    after: dict[str, str] = Field(default_factory=dict)
    same_seed: str = ""
    wrap_s: float | None = None
    wrap_without_sync_s: float | None = None  # None if this torch cannot wrap without the broadcast
    size_bytes: int = 0


class OffState(Frozen):
    """The worst element of a parameter or buffer with a wrong value.

    ``from_rank`` is the original rank whose value it holds, or None. ``got`` is None if it is not a finite number.
    """

    name: str
    expected: float
    got: float | None
    from_rank: int | None = None


class Buffers(Fact):
    """The wrong values in one rank's model state. ``source_rank`` is the rank that DDP broadcasts from.

    ``parameters_off``: after wrapping; ``buffers_off``: after two forwards; ``batch_norm_off``: after the first.
    ``sync_batch_norm_off`` is None if it could not be tested; ``sync_batch_norm_reason`` says why. ``normalised_off``
    and ``sync_normalised_off``: outputs of BatchNorm and SyncBatchNorm for the batch. At level standard or higher:
    ``kept_off`` with broadcasting off, ``reassigned_off`` for a buffer that got a new tensor after wrapping. None: not
    checked.
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
    """One read of the file. ``told``: its SHA-256 as read back by the saving rank; ``read``: as read by this rank.

    ``size_bytes`` and ``read`` are None if the file did not exist. ``holds_version`` is None if torch could not load it
    or it is not what the first rank saves.
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
    """The reads by one rank of the file that group rank 0 saved twice."""

    KIND: ClassVar[str] = "checkpoint/1"

    world_size: int
    group_rank: int
    folder: str
    working_directory: str
    loads: tuple[Loaded, ...]
