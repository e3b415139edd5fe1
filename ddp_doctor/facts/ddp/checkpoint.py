"""What one rank read of a checkpoint that another wrote, as the probe writes it and the rules read it."""

from typing import ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class Loaded(Frozen):
    """One look at the file. ``told`` is its SHA-256 as the rank that saved it read it back, ``read`` as this one did.

    ``size_bytes`` and ``read`` are None where the file was not there; ``holds_*`` where torch could not load it, or it
    is not what a rank saves.
    """

    version: int
    told_bytes: int
    told: str
    size_bytes: int | None = None
    read: str | None = None
    seen_after_s: float = 0.0
    holds_version: int | None = None
    holds_rank: int | None = None  # by group rank
    error: str | None = None


class Resharded(Frozen):
    """This rank's part of what all ranks saved, loaded by a group of ``world_size`` ranks, in which it has its number.

    ``error`` is torch's, which all of the group get; it arose on the ranks ``failed``. ``off_first`` is the first
    element that is off, by its place in the whole; ``off_holds`` the place whose number it holds, None for no place.
    """

    world_size: int
    first: int
    elements: int
    off_elements: int = 0
    off_first: int | None = None
    off_holds: int | None = None
    failed: tuple[int, ...] = ()
    error: str | None = None


class Sharded(Frozen):
    """A checkpoint that all ranks saved together, loaded by this rank alone.

    ``shards`` counts the files, one of each rank; ``missing`` and ``off`` are group ranks whose file was not seen, or
    whose elements are not what they saved. ``error`` is torch's, where it could not load.
    """

    shards: int
    missing: tuple[int, ...] = ()
    off: tuple[int, ...] = ()
    off_elements: int = 0
    error: str | None = None
    resharded: Resharded | None = None
    resharded_reason: str | None = None  # why there is none


class Checkpoint(Fact):
    """What one rank read back of the file that group rank 0 saved twice, and of the shards of all."""

    KIND: ClassVar[str] = "checkpoint/1"

    world_size: int
    group_rank: int
    folder: str
    working_directory: str
    loads: tuple[Loaded, ...]
    sharded: Sharded | None = None
    sharded_reason: str | None = None  # why there is none
