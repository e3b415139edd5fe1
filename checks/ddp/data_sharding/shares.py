"""The shares that torch's DistributedSampler gives this rank of small data sets."""

from collections.abc import Sequence
from typing import Any

from ddp_doctor.facts.ddp.data_sharding import Share
from ddp_doctor.model.context import RankContext

#: Of each rank: so many that no two epochs have one order by chance.
_PER_RANK = 4
_LEAST = 16


def lengths(ranks: int) -> tuple[int, ...]:
    """Lengths of the data sets: one that the ranks divide, one that is over by one, which is padded or cut."""
    per_rank = max(_PER_RANK, -(-_LEAST // ranks))
    return (per_rank * ranks,) if ranks == 1 else (per_rank * ranks, per_rank * ranks + 1)


def shares(ctx: RankContext) -> tuple[Share, ...]:
    """This rank's share of each data set, without drop_last and with it."""
    return tuple(
        _share(sampler_of(ctx, range(length), drop_last), drop_last)
        for length in lengths(ctx.world_size)
        for drop_last in (False, True)
    )


def sampler_of(ctx: RankContext, data: Sequence[int], drop_last: bool) -> Any:
    """A DistributedSampler as a job makes it: rank and number of ranks are those of the process group."""
    import torch.distributed as dist
    from torch.utils.data.distributed import DistributedSampler

    ranks, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
    given: Any = data  # a Dataset is anything with a length and items
    return DistributedSampler(given, num_replicas=ranks, rank=rank, drop_last=drop_last)


def _share(sampler: Any, drop_last: bool) -> Share:
    first, again = tuple(sampler), tuple(sampler)
    sampler.set_epoch(1)
    return Share(
        data_length=len(sampler.dataset),
        drop_last=drop_last,
        replicas=getattr(sampler, "num_replicas", None),
        rank=getattr(sampler, "rank", None),
        seed=getattr(sampler, "seed", None),
        first=first,
        again=again,
        next_epoch=tuple(sampler),
    )
