"""One rank's share of small data sets, its random numbers and its sums under join, as rules read them."""

from typing import ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class Share(Frozen):
    """The indices that a DistributedSampler gave this rank, and what it says of itself (None: nothing)."""

    data_length: int
    drop_last: bool
    replicas: int | None
    rank: int | None
    seed: int | None
    first: tuple[int, ...]
    again: tuple[int, ...]  # of a second pass without set_epoch()
    next_epoch: tuple[int, ...]  # after set_epoch(1)


class Stream(Frozen):
    """The first numbers of a source of random numbers, seeded the same on all ranks and for each on its own."""

    source: str
    common: tuple[int, ...]
    own: tuple[int, ...]


class Joined(Frozen):
    """The weight of a model after uneven numbers of steps under ``DDP.join()``; it starts at 0.

    ``weight`` is None where it is not a finite number.
    """

    by_initial_world_size: bool
    expected: float
    weight: float | None


class DataSharding(Fact):
    """What one rank's data loading and random numbers are; ``group_rank`` is its number in this group.

    ``start_up_files`` are the files of sitecustomize and usercustomize, where Python ran any.
    """

    KIND: ClassVar[str] = "data_sharding/1"

    world_size: int
    group_rank: int
    shares: tuple[Share, ...]
    torch_seed: int  # as the probe found it
    start_up_files: tuple[str, ...] = ()
    streams: tuple[Stream, ...] = ()
    steps: tuple[int, ...] = ()  # under join, by group rank
    joined: tuple[Joined, ...] = ()
    join_reason: str | None = None  # why there is none
