"""The shares that torch's samplers give this rank, its random numbers, and uneven inputs under join()."""

import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddp_doctor.facts.ddp.data_sharding import Joined, Share, Stream
from ddp_doctor.model.context import RankContext

#: Samples of each rank: enough that no two epochs have the same order by chance.
_PER_RANK = 4
_LEAST = 16


def lengths(ranks: int) -> tuple[int, ...]:
    """Lengths of the data sets: one that divides evenly, and one more, which is padded or cut."""
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


COMMON_SEED = 20_201
_BELOW = 2**31
#: Two draws are equal by chance once in 2**62.
_DRAWS = 2
Draw = Callable[[int], tuple[int, ...]]


def streams(ctx: RankContext) -> tuple[Stream, ...]:
    """What each source draws; its state is put back."""
    return tuple(
        Stream(source=source, common=draw(COMMON_SEED), own=draw(COMMON_SEED + 1 + ctx.group_rank))
        for source, draw in sources(ctx.device)
    )


def sources(device: str) -> Iterator[tuple[str, Draw]]:
    """The available sources of random numbers, with a function that seeds one and draws from it."""
    yield "torch", lambda seed: _torch(seed, "cpu")
    if device != "cpu":
        yield "torch on the GPU", lambda seed: _torch(seed, device)
    yield "random", _random
    numpy = sys.modules.get("numpy")  # torch has imported it where there is one
    if numpy is not None:
        yield "numpy", lambda seed: _numpy(numpy, seed)


def start_up_files() -> tuple[str, ...]:
    """What Python itself imported at its start (module site), where its file is known."""
    modules = (sys.modules.get(name) for name in ("sitecustomize", "usercustomize"))
    files = (getattr(module, "__file__", None) for module in modules)
    return tuple(file for file in files if file)


def _torch(seed: int, device: str) -> tuple[int, ...]:
    import torch

    with torch.random.fork_rng(devices=[] if device == "cpu" else [device]):
        torch.manual_seed(seed)
        return tuple(torch.randint(_BELOW, (_DRAWS,), device=device).tolist())


def _random(seed: int) -> tuple[int, ...]:
    state = random.getstate()
    random.seed(seed)
    drawn = tuple(random.sample(range(_BELOW), _DRAWS))
    random.setstate(state)
    return drawn


def _numpy(numpy: Any, seed: int) -> tuple[int, ...]:
    state = numpy.random.get_state()
    numpy.random.seed(seed)
    drawn = tuple(int(number) for number in numpy.random.randint(_BELOW - 1, size=_DRAWS))
    numpy.random.set_state(state)
    return drawn


@dataclass(frozen=True)
class Coverage:
    """How the shares of all ranks cover a data set: ``padded`` and ``dropped`` are by design, all else is wrong.

    Source: torch/utils/data/distributed.py, DistributedSampler. Without drop_last it repeats as many indices as make
    the length a multiple of the ranks; with drop_last it leaves out as many as are over. Either is at most one
    less than there are ranks, and all shares have one length.
    """

    missing: tuple[int, ...] = ()  # indices that no rank has, beyond what drop_last may leave out
    repeated: Mapping[int, tuple[int, ...]] | None = None  # index: the ranks that have it, beyond the padding
    outside: Mapping[int, tuple[int, ...]] | None = None  # rank: its indices that the data set does not have
    padded: tuple[int, ...] = ()  # indices that came again to make the shares equal
    dropped: tuple[int, ...] = ()  # indices left out to make them equal

    @property
    def right(self) -> bool:
        """Whether every index occurs as often as it must."""
        return not (self.missing or self.repeated or self.outside)


def judge_indices(by_rank: Mapping[int, Sequence[int]], length: int, drop_last: bool) -> Coverage:
    """The coverage of a data set of ``length`` by the indices that each of all ranks takes in one epoch."""
    holders: dict[int, list[int]] = defaultdict(list)
    outside: dict[int, tuple[int, ...]] = {}
    for rank, indices in sorted(by_rank.items()):
        strange = tuple(index for index in indices if not 0 <= index < length)
        if strange:
            outside[rank] = strange
        for index in indices:
            holders[index].append(rank)
    missing = tuple(index for index in range(length) if index not in holders)
    repeated = {
        index: tuple(ranks) for index, ranks in sorted(holders.items()) if len(ranks) > 1 and 0 <= index < length
    }
    again = sum(len(ranks) - 1 for ranks in repeated.values())
    may_drop = length % len(by_rank) if drop_last else 0
    may_pad = 0 if drop_last else -length % len(by_rank)
    drops, pads = len(missing) <= may_drop, again <= may_pad
    return Coverage(
        missing=() if drops else missing,
        repeated=None if pads or not repeated else repeated,
        outside=outside or None,
        padded=tuple(repeated) if pads else (),
        dropped=missing if drops else (),
    )


def behind(steps: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks that take fewer steps than others, whose collectives then wait for ever."""
    most = max(steps.values(), default=0)
    return tuple(sorted(rank for rank, taken in steps.items() if taken < most))


def joined_mean(steps: Sequence[int], gradients: Sequence[float], by_initial: bool) -> float:
    """The sum of all steps' mean gradients under ``DDP.join()``; ``steps`` and ``gradients`` by group rank.

    Ranks that have ended add nothing to a step. It is divided by all ranks (``divide_by_initial_world_size``,
    DDP's default) or by those that still take part.
    """
    total = 0.0
    for step in range(max(steps, default=0)):
        taking = [gradient for gradient, taken in zip(gradients, steps, strict=True) if taken > step]
        total += sum(taking) / (len(steps) if by_initial else len(taking))
    return total


def planned_steps(ctx: RankContext) -> int:
    """How many batches this rank has."""
    return 2 if ctx.group_rank == 0 else 1


def agreed_steps(ctx: RankContext) -> tuple[int, ...]:
    """The steps of each rank, by group rank; exchanged over the control store, where no rank can hang."""
    with ctx.step("exchange", "steps"):
        steps = ctx.exchange("steps", str(planned_steps(ctx)))
    return tuple(int(count) for count in steps)


def joined(ctx: RankContext, steps: tuple[int, ...]) -> tuple[Joined, ...]:
    """The weight after these steps, for both ways to divide, in one DDP: making a DDP takes the most time."""
    model = wrap(ctx)
    gradients = [float(place + 1) for place in range(len(steps))]
    return tuple(
        Joined(
            by_initial_world_size=by_initial,
            expected=-joined_mean(steps, gradients, by_initial),
            weight=_train(ctx, model, steps[ctx.group_rank], by_initial),
        )
        for by_initial in (True, False)
    )


def _train(ctx: RankContext, model: Any, steps: int, by_initial: bool) -> float | None:
    """The weight, from 0, after gradient descent at rate 1; the gradient of a batch is this rank's group rank + 1."""
    import torch

    torch.nn.init.zeros_(model.module.weight)
    batch = torch.full((1, 1), float(ctx.group_rank + 1), device=ctx.device)
    with ctx.step("join", f"by_initial={by_initial}"):
        with model.join(divide_by_initial_world_size=by_initial):
            for _ in range(steps):
                model.zero_grad()
                model(batch).sum().backward()
                with torch.no_grad():
                    model.module.weight -= model.module.weight.grad
        weight = model.module.weight.item()
    return float(weight) if math.isfinite(weight) else None


def wrap(ctx: RankContext) -> Any:
    """One weight in DistributedDataParallel."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    module = torch.nn.Linear(1, 1, bias=False)
    with ctx.step("ddp_construct", "join"):
        return DistributedDataParallel(module.to(ctx.device), process_group=ctx.group)
